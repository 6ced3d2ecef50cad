// The text of a tagged artist, shown while it is pointed at or focused. Without scripts its <title> does that.
// The Tab key reaches a figure, the arrow keys go from mark to mark in it.
(() => {
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  let owner = null;  // the mark whose text is shown
  document.body.append(tip);
  const shown = (mark) => !mark.classList.contains("off") && mark.getClientRects().length > 0;
  for (const figure of document.querySelectorAll(".figure")) {
    const marks = [...figure.querySelectorAll("[tabindex]")];
    const enter = (mark) => marks.forEach((other) => other.setAttribute("tabindex", other === mark ? "0" : "-1"));
    marks.forEach((mark, number) => {
      const title = mark.querySelector("title");
      const text = title.textContent;
      title.remove();
      const show = () => {
        owner = mark;
        tip.textContent = text;
        tip.hidden = false;
        const at = mark.getBoundingClientRect();
        const left = Math.min(at.left + at.width / 2 - tip.offsetWidth / 2, document.body.clientWidth - tip.offsetWidth - 8);
        const above = at.top - tip.offsetHeight - 8;
        tip.style.left = `${window.scrollX + Math.max(8, left)}px`;
        tip.style.top = `${window.scrollY + (above > 0 ? above : at.bottom + 8)}px`;
      };
      const hide = () => { if (owner === mark) tip.hidden = true; };
      mark.addEventListener("pointerenter", show);
      mark.addEventListener("pointerleave", hide);
      mark.addEventListener("focus", () => { enter(mark); show(); });
      mark.addEventListener("blur", hide);
      mark.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
        if (!step) return;
        event.preventDefault();
        for (let i = 1; i <= marks.length; i += 1) {
          const next = marks[(number + step * i + marks.length * i) % marks.length];
          if (shown(next)) { next.focus(); return; }
        }
      });
    });
    if (marks.length) enter(marks[0]);
  }
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });
})();
