// A sampler on real logits: temperature, then top-k, top-p, min-p; bars of what is kept and what is cut.
function render({ model, el }) {
  const logits = floats(model.get("logits")), tokens = names(model.get("tokens")), V = tokens.length;
  const first = {};
  for (const name of ["selected", "temperature", "topK", "topP", "minP"]) first[name] = model.get(name);
  const change = (name) => (value) => { model.set(name, value); model.save_changes(); };
  const sum = (values) => values.reduce((a, b) => a + b, 0);
  const normal = (values) => { const total = sum(values); return values.map((x) => x / total); };

  const context = choice("After", model.get("contexts"), change("selected"));
  const temperature = slider("Temperature", { min: 0, max: 2, step: 0.05, digits: 2 }, change("temperature"));
  const topK = slider("Top-k", { min: 1, max: V, step: 1, spoken: (k) => (k === V ? "all" : String(k)) }, change("topK"));
  const topP = slider("Top-p", { min: 0.05, max: 1, step: 0.05, digits: 2 }, change("topP"));
  const minP = slider("Min-p", { min: 0, max: 1, step: 0.05, digits: 2 }, change("minP"));
  const reset = button("Reset", () => { for (const name in first) model.set(name, first[name]); model.save_changes(); });
  const sentence = status(), table = h("table"), code = h("code"), formula = h("div", { class: "cx-formula" }, h("div", {}, "The same with course_lib.generation: ", code));

  // Both distributions, (V) each: at the temperature, and after the filters.
  function distributions() {
    const row = logits[model.get("selected")], heat = model.get("temperature"), most = Math.max(...row);
    if (heat === 0) {
      const best = row.indexOf(most), one = row.map((_, i) => (i === best ? 1 : 0));
      return [one, one];
    }
    const before = normal(row.map((x) => Math.exp((x - most) / heat)));
    const least = [...before].sort((a, b) => b - a)[model.get("topK") - 1];
    let after = normal(before.map((p) => (p >= least ? p : 0)));
    if (model.get("topP") < 1) {
      const cut = new Set();
      let reached = 0;
      for (const i of order(after)) {
        if (reached >= model.get("topP")) cut.add(i);
        reached += after[i];
      }
      after = normal(after.map((p, i) => (cut.has(i) ? 0 : p)));
    }
    const bound = model.get("minP") * Math.max(...after);
    return [before, normal(after.map((p) => (p >= bound ? p : 0)))];
  }

  const order = (values) => values.map((_, i) => i).sort((a, b) => values[b] - values[a] || a - b);

  function draw() {
    const [before, after] = distributions(), ranked = order(before);
    context.show(model.get("selected")); temperature.show(model.get("temperature"));
    topK.show(model.get("topK")); topP.show(model.get("topP")); minP.show(model.get("minP") ?? 0);
    const kept = after.filter((p) => p > 0).length, mass = sum(before.filter((_, i) => after[i] > 0));
    sentence.textContent = `${kept} of ${V} tokens kept; they had probability ${fixed(mass)} together. ` +
      `The most likely, ${quote(tokens[ranked[0]])}, goes from ${fixed(before[ranked[0]])} to ${fixed(after[ranked[0]])}.`;
    drawTable(before, after, ranked);
    const parts = [`temperature=${fixed(model.get("temperature"), 2)}`];
    if (model.get("topK") < V) parts.push(`top_k=${model.get("topK")}`);
    if (model.get("topP") < 1) parts.push(`top_p=${fixed(model.get("topP"), 2)}`);
    if (model.get("minP") > 0) parts.push(`min_p=${fixed(model.get("minP"), 2)}`);
    code.textContent = `Sampling(${parts.join(", ")})`;
  }

  function drawTable(before, after, ranked) {
    const count = Math.min(V, model.get("shown")), most = Math.max(...before, ...after);
    const bar = (p, color) => h("div", { style: `height:7px;margin:1px 0;width:${(100 * p) / most}%;background:${color}` });
    const line = (name, p, q) => h("tr", {}, h("th", { scope: "row", class: "cx-name", title: name }, name),
      h("td", {}, fixed(p)), h("td", {}, q > 0 ? fixed(q) : "cut"),
      h("td", { style: "width:170px", "aria-hidden": "true" }, bar(p, q > 0 ? "#0072B2" : HATCH), bar(q, "#D55E00")));
    const rest = ranked.slice(count);
    table.replaceChildren(h("caption", {}, "The most likely tokens"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col", class: "cx-name" }, "token"), ...cells("th", ["at the temperature", "after the filters"], { scope: "col" }), h("td"))),
      h("tbody", {}, ...ranked.slice(0, count).map((i) => line(tokens[i], before[i], after[i])),
        ...(rest.length ? [line(`${rest.length} others`, sum(rest.map((i) => before[i])), sum(rest.map((i) => after[i])))] : [])));
  }

  for (const name in first) model.on("change:" + name, draw);
  draw();
  const legend = h("p", { class: "cx-note" }, h("span", { class: "cx-key", style: "background:#0072B2" }), "kept, at the temperature  ",
    h("span", { class: "cx-key", style: `background:${HATCH}` }), "cut  ", h("span", { class: "cx-key", style: "background:#D55E00" }), "after the filters");
  el.append(h("div", { class: "cx-controls" }, context.node, temperature.node, topK.node, topP.node, ...(first.minP === null ? [] : [minP.node]), reset), sentence,
    scroller("Probabilities", table), legend, formula);
}
