"use strict";
// Draws the charts of a kfl page, serves its switches and sliders, and keeps a live page up to date.
(() => {
  let figures = JSON.parse(document.getElementById("figures").textContent);
  const root = document.documentElement;
  const narrow = matchMedia("(max-width: 560px)");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const timers = new Map();

  // ── Colours: "@c1" and "@c1/0.2" are roles; the style sheet says what they are in this theme. ──
  let palette = {};
  function readPalette() {
    const style = getComputedStyle(root);
    palette = {};
    for (const name of ["bg", "panel", "ink", "muted", "line", "soft", "faint", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8"]) {
      palette[name] = style.getPropertyValue("--" + name).trim();
    }
  }
  function colour(role) {
    const [name, opacity] = role.slice(1).split("/");
    const hex = palette[name];
    if (!hex) return role;
    if (!opacity) return hex;
    const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
    return `rgba(${r}, ${g}, ${b}, ${opacity})`;
  }
  function painted(value) {
    if (typeof value === "string") return value.startsWith("@") ? colour(value) : value;
    if (Array.isArray(value)) return value.length > 2 && typeof value[0] === "number" ? value : value.map(painted);
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, painted(item)]));
    }
    return value;
  }

  // ── A figure as Plotly takes it, in this theme and at this width. ──
  function spelledOut(trace) {
    if (!trace.z || !trace.z.digits) return trace;
    const { digits, ranks } = trace.z;
    const labels = trace.text.labels;
    return {
      ...trace,
      z: digits.map((row) => Array.from(row, (digit) => ranks[digit] || null)),
      text: digits.map((row) => Array.from(row, (digit) => labels[digit])),
    };
  }
  function axisStyle(axis, small) {
    return {
      gridcolor: palette.line, linecolor: palette.line, zeroline: false, automargin: true, ticks: "",
      fixedrange: small, ...axis, title: { standoff: 8, font: { color: palette.muted, size: small ? 11 : 12.5 }, ...(axis || {}).title },
    };
  }
  function layoutOf(figure, view) {
    const small = narrow.matches;
    const layout = painted(figure.layout || {});
    return {
      ...layout,
      xaxis: axisStyle(layout.xaxis, small),
      yaxis: axisStyle(layout.yaxis, small),
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: small ? 11 : 12.5, color: palette.ink },
      margin: { l: small ? 44 : 56, r: 12, t: 14, b: 40 },
      legend: { orientation: "h", x: 0, y: 1.02, xanchor: "left", yanchor: "bottom", font: { color: palette.ink }, ...layout.legend },
      hoverlabel: { bgcolor: palette.panel, bordercolor: palette.line, font: { color: palette.ink } },
      hovermode: layout.hovermode === undefined ? "closest" : layout.hovermode,
      modebar: { bgcolor: "rgba(0,0,0,0)", color: palette.muted, activecolor: palette.ink },
      dragmode: small ? false : "zoom",
      uirevision: view,
    };
  }
  const config = {
    responsive: true, displaylogo: false,
    modeBarButtons: [["toImage"], ["zoom2d", "pan2d", "resetScale2d"]], // and none of those that leave the page
    toImageButtonOptions: { format: "svg" },
  };
  function barFits(trace) {
    const size = narrow.matches ? 11 : 12.5;
    const text = { tickfont: { color: palette.ink, size }, outlinewidth: 0 };
    const titled = (bar) => ({ ...text, ...bar, title: { ...bar.title, font: { color: palette.muted, size } } });
    if (trace.colorbar) trace.colorbar = titled(trace.colorbar);
    if (trace.marker && trace.marker.colorbar) trace.marker.colorbar = titled(trace.marker.colorbar);
    return trace;
  }

  function viewOf(name) {
    const chosen = document.querySelector(`input[name="${name}-view"]:checked`);
    return chosen ? chosen.value : Object.keys(figures[name].views)[0];
  }
  async function draw(plot) {
    const name = plot.dataset.figure;
    const chart = figures[name];
    if (!chart || plot.closest("[hidden]")) return;
    const view = viewOf(name);
    const figure = chart.views[view];
    const data = figure.data.map((trace) => barFits(painted(spelledOut(trace))));
    if (chart.frames) moveTo(data, chart.frames, place(name, chart.frames));
    await Plotly.react(plot, data, layoutOf(figure, view), { ...config, displayModeBar: !narrow.matches });
    // A page that was opened out of sight had no size when it was first drawn.
    if (Math.abs(plot._fullLayout.width - plot.clientWidth) > 1) await Plotly.Plots.resize(plot);
    plot.dataset.drawn = view || "only";
  }

  // ── Sliders over rounds. ──
  const sliderOf = (name) => document.getElementById(name + "-slider");
  const place = (name, frames) => Math.min(Number(sliderOf(name).value), frames.labels.length - 1);
  function moveTo(data, frames, at) {
    if (frames.kind === "marked") {
      const from = data[frames.of];
      const which = frames.which[at];
      Object.assign(data[frames.trace], { x: which.map((i) => from.x[i]), y: which.map((i) => from.y[i]) });
      return;
    }
    const rows = (rows_) => rows_.map((row) => row[at]);
    const ways = (rows_) => rows_.flatMap((row) => [...row.slice(Math.max(0, at - frames.tail), at + 1), null]);
    Object.assign(data[frames.points], { x: rows(frames.x), y: rows(frames.y) });
    Object.assign(data[frames.paths], { x: ways(frames.x), y: ways(frames.y) });
  }
  function slid(name) {
    const { frames } = figures[name];
    const at = place(name, frames);
    const slider = sliderOf(name);
    slider.setAttribute("aria-valuetext", frames.labels[at]);
    slider.parentElement.querySelector("output").textContent = frames.labels[at];
    draw(document.getElementById(name + "-plot"));
  }
  function stop(name) {
    clearInterval(timers.get(name));
    timers.delete(name);
    const button = document.getElementById(name + "-play");
    if (button) { button.textContent = "Play"; button.setAttribute("aria-label", "Play over the rounds"); }
  }
  function play(name) {
    const slider = sliderOf(name);
    const button = document.getElementById(name + "-play");
    if (Number(slider.value) >= Number(slider.max)) slider.value = 0;
    slid(name);
    button.textContent = "Stop";
    button.setAttribute("aria-label", "Stop");
    timers.set(name, setInterval(() => {
      if (!sliderOf(name) || Number(sliderOf(name).value) >= Number(sliderOf(name).max)) { stop(name); return; }
      sliderOf(name).value = Number(sliderOf(name).value) + 1;
      slid(name);
    }, calm.matches ? 900 : 180));
  }

  // ── Draw what is near first, the rest when there is time. ──
  const later = (task) => (window.requestIdleCallback ? requestIdleCallback(task, { timeout: 30 }) : setTimeout(task, 1));
  const nextFrame = () => new Promise((done) => { requestAnimationFrame(done); setTimeout(done, 100); });
  const plots = () => Array.from(document.querySelectorAll(".plot")).filter((plot) => !plot.closest("[hidden]"));
  async function drawAll() {
    delete document.body.dataset.ready;
    await nextFrame();
    readPalette();
    for (const plot of plots()) {
      await draw(plot);
      await new Promise((done) => later(done));
    }
    document.body.dataset.ready = "yes";
  }
  let queue = Promise.resolve();
  function redraw() {
    queue = queue.then(drawAll).catch((problem) => console.error(problem));
    return queue;
  }

  // ── Controls. ──
  document.addEventListener("change", (event) => {
    const input = event.target;
    if (input.matches(".switch input")) draw(document.getElementById(input.name.replace(/-view$/, "-plot")));
    if (input.id === "run-choice") {
      for (const run of document.querySelectorAll(".run")) run.hidden = run.dataset.run !== input.value;
      redraw();
    }
  });
  document.addEventListener("input", (event) => {
    const player = event.target.closest(".player");
    if (player) { stop(player.dataset.player); slid(player.dataset.player); }
  });
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.matches(".play")) {
      const name = button.parentElement.dataset.player;
      if (timers.has(name)) stop(name); else play(name);
    } else if (button.matches(".copy")) {
      const source = document.getElementById(button.dataset.copy);
      const range = document.createRange();
      range.selectNodeContents(source);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      try { await navigator.clipboard.writeText(source.textContent); button.textContent = "Copied"; } catch { button.textContent = "Selected"; }
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    } else if (button.id === "theme") {
      const names = ["auto", "light", "dark"];
      setTheme(names[(names.indexOf(root.dataset.theme) + 1) % names.length], true);
    }
  });
  function setTheme(name, keep) {
    root.dataset.theme = name;
    const button = document.getElementById("theme");
    button.textContent = { auto: "Auto", light: "Light", dark: "Dark" }[name];
    button.setAttribute("aria-label", "Theme: " + { auto: "automatic", light: "light", dark: "dark" }[name]);
    if (keep) { try { localStorage.setItem("kfl-theme", name); } catch { /* a page from a file may have no storage */ } }
    redraw();
  }
  dark.addEventListener("change", redraw);
  narrow.addEventListener("change", redraw);

  // ── A live page: new content comes from the server; what the reader chose stays as it is. ──
  function renew(answer) {
    const main = document.getElementById("main");
    const kept = new Map(Array.from(main.querySelectorAll(".plot"), (plot) => [plot.id, plot]));
    const chosen = Array.from(main.querySelectorAll("input:checked"), (input) => input.id);
    const open = Array.from(main.querySelectorAll("details[open]"), (box) => box.id);
    const sliders = Array.from(main.querySelectorAll("input[type=range]"), (s) => [s.id, s.value, s.value === s.max]);
    const focus = document.activeElement && document.activeElement.id;
    const incoming = new DOMParser().parseFromString(answer.html, "text/html");
    for (const plot of incoming.querySelectorAll(".plot")) {
      const old = kept.get(plot.id);
      if (old) { old.setAttribute("aria-label", plot.getAttribute("aria-label")); plot.replaceWith(old); }
    }
    for (const [id, plot] of kept) if (!incoming.getElementById(id)) Plotly.purge(plot);
    figures = answer.figures;
    document.title = answer.title;
    main.replaceChildren(...incoming.body.childNodes);
    document.getElementById("menu").replaceChildren(...answer.links.map(([name, title]) => {
      const link = document.createElement("a");
      link.href = "#" + name;
      link.textContent = title;
      return link;
    }));
    for (const id of chosen) { const input = document.getElementById(id); if (input) input.checked = true; }
    for (const id of open) { const box = document.getElementById(id); if (box) box.open = true; }
    for (const [id, value, atEnd] of sliders) {
      const slider = document.getElementById(id);
      if (!slider || atEnd) continue;
      slider.value = value;
      const { frames } = figures[id.replace(/-slider$/, "")];
      slider.parentElement.querySelector("output").textContent = frames.labels[Math.min(value, frames.labels.length - 1)];
    }
    for (const name of timers.keys()) {
      const button = document.getElementById(name + "-play");
      if (button) { button.textContent = "Stop"; button.setAttribute("aria-label", "Stop"); } else stop(name);
    }
    if (focus && document.getElementById(focus)) document.getElementById(focus).focus({ preventScroll: true });
    return redraw();
  }
  let version = document.body.dataset.live;
  async function poll() {
    const news = document.getElementById("news");
    let wait = 1000;
    try {
      const reply = await fetch("data.json?have=" + encodeURIComponent(version), { cache: "no-store" });
      const answer = await reply.json();
      if (answer.html !== undefined) { version = answer.version; await renew(answer); }
      news.setAttribute("aria-live", answer.news.startsWith("Live:") ? "off" : "polite"); // rounds are not read aloud
      if (news.textContent !== answer.news) news.textContent = answer.news;
      wait = 1000 * (answer.wait_s || 1);
    } catch {
      news.textContent = "kfl watch has ended; this is the last it showed.";
      wait = 3000;
    }
    setTimeout(poll, wait);
  }

  window.kfl = { renew }; // for pages that ask for their content themselves, such as the playground

  let stored = "auto";
  try { stored = localStorage.getItem("kfl-theme") || "auto"; } catch { /* as above */ }
  setTheme(["light", "dark"].includes(stored) ? stored : "auto", false);
  if (version !== undefined) poll();
})();
