"use strict";
// The controls of the playground: what is moved goes to the library, and its answer is shown by report.js.
(() => {
  const form = document.getElementById("controls");
  const main = document.getElementById("main");
  const news = document.getElementById("news");
  const problem = document.getElementById("problem");
  const STEPS = 1000;
  const controls = Array.from(form.querySelectorAll(".control[data-name]"), (box) => ({
    box, name: box.dataset.name, scale: box.dataset.scale, least: Number(box.dataset.least), most: Number(box.dataset.most),
    per: Number(box.dataset.per), number: box.querySelector(".number input"), slider: box.querySelector(".slider"),
  }));
  const byName = Object.fromEntries(controls.map((control) => [control.name, control]));
  const unit = (control) => { const found = control.box.querySelector(".unit"); return found ? " " + found.textContent : ""; };

  // ── Values: the number field holds the value, in its unit; the slider follows it. ──
  const value = (control) => {
    const typed = control.number.value.trim().replace(",", ".");
    return typed === "" ? NaN : Number((Number(typed) * control.per).toPrecision(12));
  };
  function place(control) {
    const { least, most, scale, slider } = control;
    const at = value(control);
    if (!slider || !Number.isFinite(at)) return;
    if (scale === "log" || scale === "zero") {
      const first = scale === "zero" ? 1 : 0; // position 0 is the value 0
      const part = first + (STEPS - first) * Math.log(at / least) / Math.log(most / least);
      slider.value = at > 0 ? Math.round(Math.min(STEPS, Math.max(first, part))) : 0;
    } else slider.value = at;
    slider.setAttribute("aria-valuetext", control.number.value + unit(control));
  }
  function slid(control) {
    const { least, most, scale } = control;
    const at = Number(control.slider.value);
    if (scale === "log") write(control, Number((least * (most / least) ** (at / STEPS)).toPrecision(3)));
    else if (scale === "zero") write(control, at > 0 ? Number((least * (most / least) ** ((at - 1) / (STEPS - 1))).toPrecision(3)) : 0);
    else write(control, at);
  }
  function write(control, at) {
    control.number.value = String(Number((at / control.per).toPrecision(12)));
    place(control);
  }
  function takes() {
    const scheduler = document.getElementById("scheduler");
    const chosen = scheduler.selectedOptions[0];
    byName.count.box.hidden = !chosen.dataset.takes.split(" ").includes("count");
    document.getElementById("scheduler-hint").textContent = chosen.title;
  }
  function query() {
    const words = new URLSearchParams();
    for (const name of ["cell", "scheduler", "gamma"]) words.set(name, document.getElementById(name).value);
    words.set("hard_budget", document.getElementById("hard_budget").checked ? "1" : "0");
    for (const control of controls) {
      const at = value(control);
      words.set(control.name, Number.isFinite(at) ? String(at) : control.number.value.trim() || "nothing");
    }
    return words.toString();
  }
  function set(settings) {
    for (const name of ["cell", "scheduler", "gamma"]) document.getElementById(name).value = settings[name];
    document.getElementById("hard_budget").checked = settings.hard_budget;
    for (const control of controls) {
      control.number.value = String(Number((settings[control.name] / control.per).toPrecision(12)));
      place(control);
    }
    takes();
  }

  const restart = () => set(JSON.parse(document.getElementById("start").selectedOptions[0].dataset.settings));

  // ── Asking: the last change counts; a long horizon comes in parts. ──
  let turn = 0;
  let timer = 0;
  let asking = new AbortController();
  function soon() {
    clearTimeout(timer);
    main.setAttribute("aria-busy", "true");
    delete document.body.dataset.settled;
    timer = setTimeout(ask, 60);
  }
  function wrong(sentence) {
    problem.textContent = sentence;
    problem.hidden = !sentence;
    for (const { box, number } of controls) {
      const label = box.querySelector("label").textContent;
      number.setAttribute("aria-invalid", String(sentence.startsWith(label + " is ")));
    }
  }
  async function ask() {
    const mine = ++turn;
    asking.abort();
    asking = new AbortController();
    const words = query();
    const request = () => fetch("answer.json?" + words, { signal: asking.signal, cache: "no-store" }).then((reply) => reply.json());
    try {
      for (let next = request(); ;) {
        const answer = await next;
        if (mine !== turn) return;
        wrong(answer.problem || "");
        if (answer.problem) break;
        if (!answer.done) { next = request(); next.catch(() => {}); } // the library plays on while this part is drawn
        history.replaceState(null, "", "?" + answer.query);
        news.textContent = answer.news;
        await window.kfl.renew(answer);
        if (mine !== turn) return;
        if (answer.done) break;
      }
    } catch (trouble) {
      if (trouble.name === "AbortError") return;
      wrong("The playground's server does not answer; is its command still running?");
    }
    main.removeAttribute("aria-busy");
    document.body.dataset.settled = "yes";
  }

  // ── Listening. ──
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", (event) => {
    const box = event.target.closest(".control[data-name]");
    if (box) {
      const control = byName[box.dataset.name];
      if (event.target === control.slider) slid(control); else place(control);
    }
    if (event.target.id === "scheduler") takes();
    if (event.target.id === "start") restart();
    soon();
  });
  form.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.id === "reseed") write(byName.seed, (value(byName.seed) + 1) % 1000000 || 0);
    if (button.id === "restart") restart();
    soon();
  });
  window.addEventListener("pageshow", () => { controls.forEach(place); takes(); });
  if (matchMedia("(max-width: 760px)").matches) {
    for (const group of form.querySelectorAll(".group")) group.open = group.id === "group-scheduler";
  }
  controls.forEach(place);
  takes();
  if (main.dataset.done === "1") document.body.dataset.settled = "yes"; else ask();
})();
