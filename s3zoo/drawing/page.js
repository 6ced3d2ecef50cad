// The text of a tagged artist, shown while it is pointed at or focused. Without scripts its <title> does that.
(() => {
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  document.body.append(tip);
  for (const mark of document.querySelectorAll(".figure [tabindex]")) {
    const title = mark.querySelector("title");
    const text = title.textContent;
    title.remove();
    const show = () => {
      tip.textContent = text;
      tip.hidden = false;
      const at = mark.getBoundingClientRect();
      const left = Math.min(at.left + at.width / 2 - tip.offsetWidth / 2, document.body.clientWidth - tip.offsetWidth - 8);
      const above = at.top - tip.offsetHeight - 8;
      tip.style.left = `${window.scrollX + Math.max(8, left)}px`;
      tip.style.top = `${window.scrollY + (above > 0 ? above : at.bottom + 8)}px`;
    };
    const hide = () => { tip.hidden = true; };
    mark.addEventListener("pointerenter", show);
    mark.addEventListener("pointerleave", hide);
    mark.addEventListener("focus", show);
    mark.addEventListener("blur", hide);
  }
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });
})();
