// Stacks layer by layer: bars of each measure, the cosines between the tokens of one layer, and the numbers of all.
function render({ model, el }) {
  const stacks = model.get("names"), tokens = names(model.get("tokens")), cosines = model.get("cosines");
  const head = model.get("head"), measures = model.get("measures"), bars = model.get("bars"), last = measures[0].length - 1;
  const first = { stack: model.get("stack"), layer: model.get("layer") };
  const change = (name) => (value) => { model.set(name, value); model.save_changes(); };
  const place = (layer) => (layer === 0 ? "at the input" : `after layer ${layer}`);

  const stack = choice("Stack", stacks, change("stack"));
  const layer = slider("Layer", { min: 0, max: last, step: 1, spoken: place }, change("layer"));
  const reset = button("Reset", () => { for (const name in first) model.set(name, first[name]); model.save_changes(); });
  const sentence = status(), map = h("table"), all = h("table"), charts = h("div", { "aria-hidden": "true" });

  function draw() {
    const n = model.get("stack"), l = model.get("layer");
    stack.show(n); layer.show(l);
    const found = head.map((name, kind) => `${name} ${measures[n][l][kind]}`).join(", ");
    sentence.textContent = `${stacks[n]}, ${place(l)}: ${found}.`;
    drawMap(n, l);
    drawAll(l, n);
    drawCharts(n, l);
  }

  function drawMap(n, l) {
    map.replaceChildren(
      h("caption", {}, "Cosine between tokens"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col", class: "cx-name" }, "token"), ...cells("th", tokens, { scope: "col" }))),
      h("tbody", {}, ...cosines[n][l].map((row, i) => h("tr", {}, h("th", { scope: "row", class: "cx-name", title: tokens[i] }, tokens[i]),
        ...row.map((value) => {
          const cell = h("td", { class: "cx-cell" }, fixed(value / 1000, 2));
          paintSigned(cell, value / 1000, 1);
          return cell;
        })))));
  }

  function drawAll(l, chosen) {
    all.replaceChildren(
      h("caption", {}, "All stacks at this layer"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col", class: "cx-name" }, "stack"), ...cells("th", head, { scope: "col" }))),
      h("tbody", {}, ...stacks.map((name, n) => h("tr", {},
        h("th", { scope: "row", class: "cx-name", title: name, style: n === chosen ? "font-weight:600" : "" }, name),
        ...cells("td", measures[n][l], n === chosen ? { style: "font-weight:600" } : {})))));
  }

  function drawCharts(n, chosen) {
    charts.replaceChildren(...head.map((name, kind) => h("div", { style: "margin-bottom:8px" },
      h("div", { style: "font-weight:600;margin-bottom:2px" }, `${name} by layer`),
      h("div", { style: "display:flex;align-items:flex-end;height:52px;width:min(260px,80vw);gap:1px" }, ...measures[n].map((values, l) =>
        h("div", { style: `flex:1 1 0;min-width:0;height:${Math.max(4, bars[kind][n][l])}%;cursor:pointer;` +
          `background:${l === chosen ? "#D55E00" : "#0072B2"}`, title: `${name} ${place(l)}: ${values[kind]}`, onclick: () => change("layer")(l) }))))));
  }

  for (const name in first) model.on("change:" + name, draw);
  draw();
  el.append(h("div", { class: "cx-controls" }, stack.node, layer.node, reset), sentence,
    h("div", { class: "cx-columns" }, charts, scroller("Cosine between tokens", map), scroller("All stacks at this layer", all)));
}
