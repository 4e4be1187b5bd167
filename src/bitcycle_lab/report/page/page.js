"use strict";
(() => {
  const root = document.documentElement;
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];

  // -- theme ------------------------------------------------------------------------------------

  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const themeButton = document.getElementById("theme");

  function showTheme(isDark) {
    root.classList.toggle("dark", isDark);
    themeButton.textContent = isDark ? "light" : "dark";
  }

  themeButton.addEventListener("click", () => showTheme(!root.classList.contains("dark")));
  prefersDark.addEventListener("change", () => showTheme(prefersDark.matches));
  showTheme(prefersDark.matches);

  // -- tables -----------------------------------------------------------------------------------

  function compare(a, b) {
    const [x, y] = [Number(a), Number(b)];
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
  }

  for (const table of all("table.sortable")) {
    const heads = all("thead th", table);
    heads.forEach((head, column) => {
      head.firstElementChild.addEventListener("click", () => {
        const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
        for (const other of heads) other.setAttribute("aria-sort", "none");
        head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
        const key = (row) => row.cells[column].dataset.value;
        const rows = [...table.tBodies[0].rows].sort((a, b) => {
          const [x, y] = [key(a), key(b)];
          if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
          return sign * compare(x, y);
        });
        table.tBodies[0].append(...rows);
      });
    });
  }

  // -- copying ----------------------------------------------------------------------------------

  for (const button of all(".copy")) {
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "copied";
      } catch { // a page from disk may not be allowed to: select it instead
        getSelection().selectAllChildren(code);
        button.textContent = "selected";
      }
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    });
  }
})();
