// Sorts and filters the table; marks in the plots follow the filter.
(() => {
  const body = document.querySelector("#zoo tbody");
  const heads = [...document.querySelectorAll("#zoo thead th")];
  const value = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.value === undefined ? cell.textContent : cell.dataset.value;
  };
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    const number = head.classList.contains("number");
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].sort((a, b) => {
        const [x, y] = [value(a, column), value(b, column)];
        if (x === "" || y === "") return (x === "") - (y === "");  // unknown values stay last
        const order = number ? x - y : x.localeCompare(y, "en", { numeric: true });
        return down ? -order : order;
      });
      body.append(...rows);
    });
  });
  const form = document.querySelector("#controls");
  const filter = () => {
    const words = document.querySelector("#find").value.toLowerCase().split(/\s+/).filter(Boolean);
    const families = new Set([...form.querySelectorAll("[name=family]:checked")].map((box) => box.value));
    const trained = document.querySelector("#trained").checked;
    const shown = new Set();
    for (const row of body.rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !(families.has(row.dataset.family) && (!trained || row.dataset.loads === "1")
        && words.every((word) => text.includes(word)));
      if (!row.hidden) shown.add(row.dataset.name);
    }
    for (const mark of document.querySelectorAll(".figure [data-name]")) {
      mark.classList.toggle("off", !shown.has(mark.dataset.name));
    }
    document.body.classList.toggle("no-peers", !document.querySelector("#peers").checked);
    document.querySelector("#count").textContent = `${shown.size} of ${body.rows.length}`;
  };
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  filter();
})();
