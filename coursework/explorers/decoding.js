// Generation step by step: the rows that the map across has so far; on request the maps within each side, too.
function render({ model, el }) {
  const maps = model.get("maps"), source = names(model.get("source")), read = names(model.get("read"));
  const written = model.get("written"), chance = model.get("probabilities"), T = read.length;
  const first = { step: model.get("step"), head: model.get("head") };
  const change = (name) => (value) => { model.set(name, value); model.save_changes(); };

  const step = slider("Tokens written", { min: 1, max: T, step: 1 }, change("step"));
  const head = choice("Head", ["mean of all heads", ...maps.slice(1).map((_, h) => `head ${h}`)], change("head"));
  const reset = button("Reset", () => { for (const name in first) model.set(name, first[name]); model.save_changes(); });
  const sentence = status(), tables = [h("table"), h("table"), h("table")];
  const place = (row) => row.indexOf(Math.max(...row));

  function draw() {
    const t = model.get("step"), n = model.get("head"), [encoder, decoder, cross] = maps[n];
    step.show(t); head.show(n);
    const own = place(decoder[t - 1]), far = place(cross[t - 1]);
    sentence.textContent = `Step ${t}: the model reads ${quote(read[t - 1])} and what came before, and writes ${quote(written[t - 1])} ` +
      `with probability ${chance[t - 1]}. In the target it reads most from ${quote(read[own])}, ${fixed(decoder[t - 1][own] / 1000, 2)}; ` +
      `in the source from ${quote(source[far])}, ${fixed(cross[t - 1][far] / 1000, 2)}.`;
    const rows = read.map((token, i) => (i < t ? `${token} → ${written[i]}` : "not yet"));
    drawMap(tables[0], "Encoder: source reads source", encoder, source, source, source.length, -1);
    drawMap(tables[1], "Decoder: target reads target", decoder, rows, read, t, t - 1);
    drawMap(tables[2], "Across: target reads source", cross, rows, source, t, t - 1);
  }

  function drawMap(table, title, weights, rowNames, columnNames, done, newest) {
    const line = (row, i) => {
      const cellsOfRow = row.map((weight, j) => {
        const future = table === tables[1] && j > i, cell = h("td", { class: "cx-cell" }, i < done && !future ? fixed(weight / 1000, 2) : "");
        if (i >= done) return cell;
        if (future) cell.style.background = HATCH;
        else paint(cell, BLUES, weight / 1000);
        return cell;
      });
      const node = h("tr", {}, h("th", { scope: "row", class: "cx-name", title: rowNames[i] }, rowNames[i]), ...cellsOfRow);
      if (i === newest) node.style.boxShadow = "inset 3px 0 0 #E69F00";
      return node;
    };
    table.replaceChildren(h("caption", {}, title),
      h("thead", {}, h("tr", {}, h("td"), ...cells("th", columnNames, { scope: "col" }))),
      h("tbody", {}, ...weights.map(line)));
  }

  for (const name in first) model.on("change:" + name, draw);
  draw();
  const [encoder, decoder, across] = tables.map((table, n) => scroller(["Encoder", "Decoder", "Across"][n] + " map", table));
  const hidden = h("p", { class: "cx-note" }, "Hatched: later tokens, which the causal mask hides.");
  const within = h("div", { hidden: true }, h("div", { class: "cx-columns" }, encoder, decoder), hidden);
  const more = toggle("Show the attention within each side", (on) => { within.hidden = !on; });
  el.append(h("div", { class: "cx-controls" }, step.node, head.node, more.node, reset), sentence, across, within,
    h("p", { class: "cx-note" }, "Rows are queries, columns are keys."));
}
