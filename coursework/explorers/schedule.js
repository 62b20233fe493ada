// Schedules: four curves at one peak, the rate of one step, and the Python function that gives it.
function render({ model, el }) {
  const steps = model.get("steps"), peak = model.get("peak");
  const kinds = ["inverse root (Noam)", "cosine", "warm-up, stable, decay", "linear"];
  const colors = ["#0072B2", "#D55E00", "#009E73", "#CC79A7"];
  const first = {}, dials = ["kind", "warmup", "decay", "step"];
  for (const name of dials) first[name] = model.get(name);
  const change = (name) => (value) => { model.set(name, value); model.save_changes(); };
  const kind = choice("Schedule", kinds, change("kind"));
  const warmup = slider("Warm-up", { min: 1, max: Math.floor(steps / 2), step: 1 }, change("warmup"));
  const decay = slider("Decay", { min: 1, max: Math.floor(steps / 2) - 1, step: 1 }, change("decay"));
  const step = slider("Step", { min: 1, max: steps, step: 1 }, change("step"));
  const reset = button("Reset", () => { for (const name of dials) model.set(name, first[name]); model.save_changes(); });
  const sentence = status(), curve = h("div", { "aria-hidden": "true" }), table = h("table");
  const code = h("code"), shown = h("pre", { style: "margin:0;white-space:pre-wrap;background:none;color:inherit" }, code);

  // As Python's format ".3e" writes it.
  const small = (x) => x.toExponential(3).replace(/e([+-])(\d)$/, "e$10$2");

  function rate(k, which) {
    const w = model.get("warmup"), d = model.get("decay");
    if (which === 0) return peak * Math.min(k / w, Math.sqrt(w / k));
    if (k < w) return (peak * k) / w;
    const share = (k - w) / (steps - w + 1);
    if (which === 1) return (peak * (1 + Math.cos(Math.PI * share))) / 2;
    if (which === 3) return peak * (1 - share);
    return peak * (1 - Math.max(0, k - (steps - d)) / (d + 1));
  }

  function python(which) {
    const w = model.get("warmup"), d = model.get("decay"), head = `def rate(step):  # from 1 to ${steps}\n`;
    const rise = `    if step < ${w}:\n        return ${peak} * step / ${w}\n`;
    const share = `    share = (step - ${w}) / ${steps - w + 1}\n`;
    if (which === 0) return `${head}    return ${peak} * min(step / ${w}, (${w} / step) ** 0.5)`;
    if (which === 1) return `${head}${rise}${share}    return ${peak} * (1 + math.cos(math.pi * share)) / 2`;
    if (which === 3) return `${head}${rise}${share}    return ${peak} * (1 - share)`;
    return `${head}${rise}    return ${peak} * (1 - max(0, step - ${steps - d}) / ${d + 1})`;
  }

  function draw() {
    const which = model.get("kind"), w = model.get("warmup"), k = model.get("step"), now = rate(k, which);
    kind.show(which); warmup.show(w); decay.show(model.get("decay")); step.show(k);
    decay.node.hidden = which !== 2;
    sentence.textContent = `Step ${k} of ${steps}: rate ${small(now)}, ${fixed((100 * now) / peak, 1)} % of the peak. ` +
      `The first step has ${small(rate(1, which))}, step ${w} the peak, the last ${small(rate(steps, which))}.`;
    const every = Math.ceil(steps / 100), tall = 110;
    curve.replaceChildren(h("div", { style: `display:flex;align-items:flex-end;height:${tall}px;width:min(420px,80vw)` },
      ...Array.from({ length: Math.ceil(steps / every) }, (_, i) => {
        const at = Math.min(steps, 1 + i * every), here = k >= at && k < at + every;
        return h("div", { style: `flex:1 1 0;min-width:0;cursor:pointer;background:${here ? "#111111" : colors[which]};` +
          `outline:${here ? "1px solid #949494" : "none"};height:${Math.max(1, Math.round((tall * rate(at, which)) / peak))}px`,
          title: `step ${at}: ${small(rate(at, which))}`, onclick: () => change("step")(at) });
      })));
    table.replaceChildren(h("caption", {}, `The rate of step ${k}`), h("tbody", {}, ...kinds.map((name, i) => {
      const row = h("tr", {}, h("th", { scope: "row", style: "text-align:left" }, name), h("td", {}, small(rate(k, i))));
      if (i === which) row.style.boxShadow = `inset 3px 0 0 ${colors[i]}`;
      return row;
    })));
    code.textContent = python(which);
  }

  for (const name of dials) model.on("change:" + name, draw);
  draw();
  el.append(h("div", { class: "cx-controls" }, kind.node, warmup.node, decay.node, step.node, reset), sentence,
    h("div", { class: "cx-columns" }, h("div", {}, curve, h("p", { class: "cx-note" }, "rate by step, from 0 to the peak; click a bar to choose its step")), table),
    h("div", { class: "cx-formula" }, shown));
}
