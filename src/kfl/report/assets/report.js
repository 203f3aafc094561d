"use strict";
// Draws the charts of a kfl page, serves its switches and sliders, and keeps a live page up to date.
(() => {
  // ── Plotly is in the page as gzip in base64. The page's policy knows the hash of the script that comes out. ──
  async function unpack() {
    const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
  }
  let figures = JSON.parse(document.getElementById("figures").textContent);
  const root = document.documentElement;
  const narrow = matchMedia("(max-width: 560px)");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const timers = new Map();

  // ── Colors: "@c1" and "@c1/0.2" are roles; the style sheet says what they are in this theme. ──
  let palette = {};
  function readPalette() {
    const style = getComputedStyle(root);
    palette = {};
    for (const name of ["bg", "panel", "ink", "muted", "line", "soft", "faint", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8"]) {
      palette[name] = style.getPropertyValue("--" + name).trim();
    }
  }
  function color(role) {
    const [name, opacity] = role.slice(1).split("/");
    const hex = palette[name];
    if (!hex) return role;
    if (!opacity) return hex;
    const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
    return `rgba(${r}, ${g}, ${b}, ${opacity})`;
  }
  // From little to much, at least three to one against the panel at either end.
  const scales = {
    light: ["#00224e", "#3b4b78", "#6b6d78", "#8f8254", "#9c8416"],
    dark: ["#5b8fd6", "#8099b8", "#a6a79a", "#d3c163", "#ffe94a"],
  };
  const isDark = () => root.dataset.theme === "dark" || (root.dataset.theme !== "light" && dark.matches);
  function scale() {
    const inks = scales[isDark() ? "dark" : "light"];
    return inks.map((ink, index) => [index / (inks.length - 1), ink]);
  }
  function painted(value) {
    if (value === "@scale") return scale();
    if (typeof value === "string") return value.startsWith("@") ? color(value) : value;
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

  // ── Physical quantities: values are in SI units; the prefix that suits what is shown is chosen here. ──
  const PREFIXES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "µ"], [1e-9, "n"], [1e-12, "p"]];
  const TIMES = [[86400, "d", 172800], [3600, "h", 7200], [60, "min", 600]];
  function unitFor(largest, unit) {
    if (!(largest > 0)) return { per: 1, unit };
    if (unit === "s") {
      const long = TIMES.find(([, , from]) => largest >= from);
      if (long) return { per: long[0], unit: long[1] };
      if (largest >= 1) return { per: 1, unit };
    }
    const [per, prefix] = PREFIXES.find(([least]) => largest >= least * (1 - 1e-9)) || PREFIXES[PREFIXES.length - 1];
    return { per, unit: prefix + unit };
  }
  const shortest = (value) => String(Number(value.toPrecision(3)));
  function quantity(value, unit) {
    const found = unitFor(value, unit);
    return `${shortest(value / found.per)} ${found.unit}`;
  }
  const finite = (values) => (Array.isArray(values) ? values : [values]).filter((value) => Number.isFinite(value));
  const largestOf = (lists) => lists.reduce((most, list) => finite(list).reduce((m, v) => Math.max(m, Math.abs(v)), most), 0);
  const scaled = (values, per) => (Array.isArray(values) ? values.map((v) => (Number.isFinite(v) ? v / per : v)) : values);
  const named = (template, word, unit) => (template ? template.replaceAll(`[[${word}]]`, unit) : template);
  // A logarithmic axis names each tick with the prefix that fits it.
  function logTicks(axis, lists) {
    const known = lists.flatMap(finite).filter((value) => value > 0);
    if (!known.length) return;
    const [low, high] = [Math.min(...known), Math.max(...known)].map(Math.log10);
    const steps = high - low <= 3 ? [1, 2, 5] : [1];
    axis.tickvals = [];
    for (let power = Math.floor(low) - 1; power <= Math.ceil(high) + 1; power++) {
      for (const step of steps) axis.tickvals.push(Number(`${step}e${power}`));
    }
    axis.ticktext = axis.tickvals.map((value) => quantity(value, axis.si));
    axis.tickmode = "array";
    delete axis.dtick;
  }
  function inUnits(data, layout) {
    for (const letter of ["x", "y"]) {
      const axis = layout[letter + "axis"];
      if (!axis || !axis.si) { for (const trace of data) trace.hovertemplate = named(trace.hovertemplate, letter, ""); continue; }
      const lists = data.filter((trace) => trace.visible !== false).map((trace) => trace[letter] || []);
      if (axis.type === "log") {
        for (const trace of data) trace.hovertemplate = named(trace.hovertemplate, letter, axis.si);
        logTicks(axis, lists);
      } else {
        const levels = (layout.shapes || []).filter((shape) => (shape[letter + "ref"] || letter) === letter);
        const { per, unit } = unitFor(largestOf([...lists, levels.map((shape) => shape[letter + "1"])]), axis.si);
        for (const trace of data) {
          trace[letter] = scaled(trace[letter], per);
          trace.hovertemplate = named(trace.hovertemplate, letter, unit);
        }
        for (const shape of levels) for (const end of ["0", "1"]) shape[letter + end] /= per;
        for (const note of layout.annotations || []) if ((note[letter + "ref"] || letter) === letter) note[letter] /= per;
        axis.title = { ...axis.title, text: `${axis.title.text}, ${unit}` };
      }
      delete axis.si;
    }
    for (const trace of data) {
      const bar = trace.colorbar || (trace.marker && trace.marker.colorbar);
      if (!bar || !bar.si) continue;
      const values = trace.z || trace.marker.color;
      const { per, unit } = unitFor(largestOf(trace.z || [values]), bar.si);
      if (trace.z) trace.z = trace.z.map((row) => scaled(row, per)); else trace.marker.color = scaled(values, per);
      trace.hovertemplate = named(trace.hovertemplate, "bar", unit);
      bar.title = { ...bar.title, text: `${bar.title.text}, ${unit}` };
      delete bar.si;
    }
  }

  // ── What the reader chose for all charts: which groups are shown, and over how many points lines are smoothed. ──
  const hidden = new Set();
  let window_ = 1;
  function chosen(trace) {
    const meta = trace.meta || {};
    if (hidden.has(meta.group)) return { ...trace, visible: false };
    if (!meta.groups) return trace;
    const keep = (values) => values.filter((_, index) => !hidden.has(meta.groups[index]));
    return { ...trace, x: keep(trace.x), y: keep(trace.y) };
  }
  // The mean of a window around each point; toward the ends the window shrinks, so that it stays centered.
  function smoothed(trace) {
    if (window_ === 1 || !trace.meta || !trace.meta.smooth) return trace;
    const half = (window_ - 1) / 2;
    const y = trace.y.map((value, index) => {
      if (!Number.isFinite(value)) return value;
      const reach = Math.min(half, index, trace.y.length - 1 - index);
      const near = finite(trace.y.slice(index - reach, index + reach + 1));
      return near.reduce((sum, one) => sum + one, 0) / near.length;
    });
    return { ...trace, y };
  }
  function apply() {
    for (const row of document.querySelectorAll("tr[data-group]")) row.hidden = hidden.has(Number(row.dataset.group));
    document.body.classList.toggle("some-hidden", hidden.size > 0);
    for (const box of document.querySelectorAll("#shown input")) box.checked = !hidden.has(Number(box.value));
    const select = document.getElementById("smoothing");
    if (select) select.value = String(window_);
  }
  function toggle(group, on) {
    if (on) hidden.delete(group); else hidden.add(group);
    apply();
    return redraw();
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
    const data = figure.data.map((trace) => barFits(painted(smoothed(chosen(spelledOut(trace))))));
    const layout = layoutOf(figure, view);
    inUnits(data, layout);
    if (chart.frames) moveTo(data, chart.frames, place(name, chart.frames), layout, plot);
    await Plotly.react(plot, data, layout, { ...config, displayModeBar: !narrow.matches });
    listen(plot);
    // A page that was opened out of sight had no size when it was first drawn.
    if (Math.abs(plot._fullLayout.width - plot.clientWidth) > 1) await Plotly.Plots.resize(plot);
    plot.dataset.drawn = view || "only";
  }

  // A click on a group in the legend of any chart hides it in all of them.
  function listen(plot) {
    if (plot.dataset.listening) return;
    plot.dataset.listening = "yes";
    plot.on("plotly_legendclick", (event) => {
      const { group } = (event.data[event.curveNumber] || {}).meta || {};
      if (group === undefined || !document.getElementById("shown")) return true;
      toggle(group, hidden.has(group));
      return false;
    });
  }

  // ── Tables that are wider than their place say so. ──
  function cues() {
    for (const box of document.querySelectorAll(".scroll")) {
      const wide = box.scrollWidth > box.clientWidth + 1;
      box.classList.toggle("wider", wide);
      const cue = box.nextElementSibling;
      if (cue && cue.matches(".cue")) cue.hidden = !wide;
    }
  }
  addEventListener("resize", cues);
  document.addEventListener("toggle", cues, true);

  // ── Sliders over rounds. ──
  const sliderOf = (name) => document.getElementById(name + "-slider");
  const place = (name, frames) => Math.min(Number(sliderOf(name).value), frames.labels.length - 1);
  function moveTo(data, frames, at, layout, plot) {
    if (frames.kind === "marked") {
      const from = data[frames.of];
      const which = frames.which[at];
      Object.assign(data[frames.trace], { x: which.map((i) => from.x[i]), y: which.map((i) => from.y[i]) });
      return;
    }
    const rows = (rows_) => rows_.map((row) => row[at]);
    const ways = (rows_) => rows_.flatMap((row) => [...row.slice(Math.max(0, at - frames.tail), at + 1), null]);
    const [x, y] = [rows(frames.x), rows(frames.y)];
    const free = withRoom(x, y, layout, plot);
    const marker = { ...data[frames.points].marker, opacity: 1, size: free.map((room) => (room ? 22 : 9)) };
    Object.assign(data[frames.points], { x, y, marker, text: frames.names.map((name, index) => (free[index] ? name : "")) });
    Object.assign(data[frames.paths], { x: ways(frames.x), y: ways(frames.y) });
  }
  // Which points have room for their number: those at least a number's width from all that have theirs already.
  function withRoom(x, y, layout, plot) {
    const { l, r, t, b } = layout.margin;
    const size = { x: plot.clientWidth - l - r, y: plot.clientHeight - t - b };
    const pixel = (values, letter) => {
      const [low, high] = layout[letter + "axis"].range;
      return values.map((value) => (value - low) / (high - low) * size[letter]);
    };
    const [across, up] = [pixel(x, "x"), pixel(y, "y")];
    const placed = [];
    return x.map((value, index) => {
      if (!Number.isFinite(value)) return false;
      const room = placed.every((other) => Math.hypot(across[index] - across[other], up[index] - up[other]) >= 18);
      if (room) placed.push(index);
      return room;
    });
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
    await unpacked;
    await nextFrame();
    readPalette();
    for (const plot of plots()) {
      await draw(plot);
      await new Promise((done) => later(done));
    }
    cues();
    document.body.dataset.ready = "yes";
  }
  const unpacked = unpack().catch((problem) => {
    document.getElementById("news").textContent = "This browser cannot draw the charts; the tables under them hold their numbers.";
    throw problem;
  });
  let queue = Promise.resolve();
  function redraw() {
    queue = queue.then(drawAll).catch((problem) => console.error(problem));
    return queue;
  }

  // ── Controls. ──
  document.addEventListener("change", (event) => {
    const input = event.target;
    if (input.matches(".switch input")) draw(document.getElementById(input.name.replace(/-view$/, "-plot")));
    if (input.matches("#shown input")) toggle(Number(input.value), input.checked);
    if (input.id === "smoothing") { window_ = Number(input.value); redraw(); }
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
    const picked = Array.from(main.querySelectorAll("input:checked"), (input) => input.id);
    const open = Array.from(main.querySelectorAll("details[open]"), (box) => box.id);
    const sliders = Array.from(main.querySelectorAll("input[type=range]"), (s) => [s.id, s.value, s.value === s.max]);
    const focus = document.activeElement && document.activeElement.id;
    const incoming = new DOMParser().parseFromString(answer.html, "text/html");
    for (const plot of incoming.querySelectorAll(".plot")) {
      const old = kept.get(plot.id);
      if (old) { old.setAttribute("aria-label", plot.getAttribute("aria-label")); plot.replaceWith(old); }
    }
    for (const [id, plot] of kept) if (!incoming.getElementById(id) && window.Plotly) Plotly.purge(plot);
    figures = answer.figures;
    document.title = answer.title;
    main.replaceChildren(...incoming.body.childNodes);
    document.getElementById("menu").replaceChildren(...answer.links.map(([name, title]) => {
      const link = document.createElement("a");
      link.href = "#" + name;
      link.textContent = title;
      return link;
    }));
    for (const id of picked) { const input = document.getElementById(id); if (input) input.checked = true; }
    apply();
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
      news.textContent = "The server has stopped; this is the last state it showed.";
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
