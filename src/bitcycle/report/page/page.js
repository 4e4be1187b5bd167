"use strict";
(() => {
  const root = document.documentElement;
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
  const isTouch = matchMedia("(pointer: coarse)").matches;
  const hidden = new Set(); // keys of methods that the legends switched off

  // -- charts: a figure's colours are names of CSS variables, read anew for every drawing --------

  const figures = new Map(
    all(".chart").map((place) => [place, JSON.parse(place.firstElementChild.textContent)])
  );

  function colour(text, style) {
    const [, name, alpha] = text.match(/^var\((--[\w-]+)\)(?:\/([\d.]+))?$/) || [];
    if (!name) return text;
    const value = style.getPropertyValue(name).trim();
    if (!alpha) return value;
    return value + Math.round(255 * alpha).toString(16).padStart(2, "0");
  }

  function resolve(value, style) {
    if (typeof value === "string") return value.startsWith("var(") ? colour(value, style) : value;
    if (Array.isArray(value)) return value.map((inner) => resolve(inner, style));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, resolve(v, style)]));
  }

  function themed(layout, style) {
    const of = (name) => style.getPropertyValue(name).trim();
    const axis = {
      gridcolor: of("--grid"), zerolinecolor: of("--grid"), linecolor: of("--line"),
      automargin: true, separatethousands: true,
    };
    const axes = Object.keys(layout).filter((key) => /^[xy]axis/.test(key));
    return {
      margin: { l: 8, r: 12, t: 22, b: 8 },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, sans-serif", size: 12, color: of("--ink") },
      hoverlabel: { bgcolor: of("--card"), bordercolor: of("--line"), font: { color: of("--ink") } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: of("--soft"), activecolor: of("--ink") },
      uirevision: "keep", dragmode: isTouch ? false : "zoom",
      ...layout,
      ...Object.fromEntries(axes.map((key) => [key, { ...axis, ...layout[key] }])),
    };
  }

  // plotly.js is gzip in base64: a third of its size
  async function loadPlotly() {
    const packed = document.getElementById("plotly").textContent;
    const bytes = Uint8Array.from(atob(packed), (character) => character.charCodeAt(0));
    const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(plain).text();
    document.head.append(script); // defines Plotly
    if (!window.Plotly) throw new Error("the browser refused the script of the charts");
  }

  function draw(place) {
    if (!window.Plotly) return;
    if (place.closest("[hidden]") || place.closest("details:not([open])")) return;
    const style = getComputedStyle(root);
    const { data, layout } = resolve(figures.get(place), style);
    for (const trace of data) if (hidden.has(trace.meta)) trace.visible = false;
    Plotly.react(place, data, themed(layout, style), {
      responsive: true, displaylogo: false, displayModeBar: isTouch ? false : "hover",
      modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
    });
  }

  const drawAll = (inside = document) => {
    for (const place of all(".chart", inside)) setTimeout(() => draw(place)); // the page stays alive
  };

  // -- theme ------------------------------------------------------------------------------------

  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const themeButton = document.getElementById("theme");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);

  function showTheme() {
    themeButton.textContent = isDark() ? "light" : "dark";
    drawAll();
  }

  themeButton.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    showTheme();
  });
  prefersDark.addEventListener("change", showTheme);

  // -- legends ----------------------------------------------------------------------------------

  for (const legend of all(".legend")) {
    const buttons = all("button", legend);
    const show = (button, isShown) => {
      button.setAttribute("aria-pressed", String(isShown));
      if (isShown) hidden.delete(button.dataset.key);
      else hidden.add(button.dataset.key);
    };
    for (const button of buttons) {
      button.addEventListener("click", () => {
        show(button, button.getAttribute("aria-pressed") === "false");
        drawAll(legend.parentElement);
      });
      button.addEventListener("dblclick", () => {
        const isAlone = buttons.every((b) => (b === button) !== hidden.has(b.dataset.key));
        for (const other of buttons) show(other, isAlone || other === button);
        drawAll(legend.parentElement);
      });
    }
  }

  // -- one of several parts ---------------------------------------------------------------------

  for (const choice of all(".choice")) {
    const parts = all(":scope > .part", choice);
    choice.querySelector("select").addEventListener("change", (event) => {
      parts.forEach((part, i) => { part.hidden = i !== Number(event.target.value); });
      drawAll(choice);
    });
  }

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

  showTheme();
  loadPlotly().then(() => drawAll(), () => {
    document.getElementById("no-charts").hidden = false;
  });
})();
