// All heads as small maps, one head as lines from queries to keys, one query as a table.
function render({ model, el }) {
  const W = model.get("weights"), queries = names(model.get("tokens")), keys = names(model.get("keyTokens"));
  const heads = model.get("names"), T = queries.length, S = keys.length, ROW = 20;
  const first = { selected: model.get("selected"), query: model.get("query"), least: 0 };
  const change = (name) => (value) => { model.set(name, value); model.save_changes(); };

  const head = choice("Head", heads, change("selected"));
  const query = choice("Query", queries, change("query"));
  const least = slider("Hide weights below", { min: 0, max: 0.5, step: 0.05, digits: 2 }, change("least"));
  const reset = button("Reset", () => { for (const name in first) model.set(name, first[name]); model.save_changes(); });
  const sentence = status(), row = h("table"), roles = h("table");
  const grid = h("div", { "aria-hidden": "true", style: "display:flex;flex-wrap:wrap;gap:8px;margin-bottom:10px" });
  const lines = h("div", { "aria-hidden": "true", style: "display:flex;font-size:13px" });

  // A picture of size (width, height) in CSS pixels, sharp on fine screens.
  function picture(width, height, draw) {
    const canvas = h("canvas", { style: `width:${width}px;height:${height}px;display:block` });
    const scale = window.devicePixelRatio || 1;
    canvas.width = width * scale;
    canvas.height = height * scale;
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    draw(pen);
    return canvas;
  }

  function shade(share) {
    const node = h("span");
    paint(node, BLUES, share);
    return node.style.background || node.style.backgroundColor;
  }
  const shades = Array.from({ length: 101 }, (_, n) => shade(n / 100));

  const cell = Math.max(2, Math.min(9, Math.floor(84 / Math.max(T, S))));
  const tiles = heads.map((name, n) => {
    const map = picture(S * cell, T * cell, (pen) => W[n].forEach((weights, i) => weights.forEach((weight, j) => {
      pen.fillStyle = shades[Math.round(weight / 10)];
      pen.fillRect(j * cell, i * cell, cell, cell);
    })));
    const tile = h("div", { title: name, style: "cursor:pointer;padding:2px", onclick: () => change("selected")(n) }, map,
      h("div", { style: "font-size:12px" }, name));
    grid.append(tile);
    return tile;
  });

  function draw() {
    const n = model.get("selected"), i = model.get("query"), limit = Math.round(1000 * model.get("least"));
    head.show(n); query.show(i); least.show(model.get("least"));
    tiles.forEach((tile, m) => { tile.style.outline = m === n ? "2px solid #E69F00" : "none"; });
    const weights = W[n][i], best = weights.indexOf(Math.max(...weights));
    const shown = weights.filter((weight) => weight >= limit).length;
    sentence.textContent = `In ${heads[n]}, ${quote(queries[i])} gives its largest weight, ${fixed(weights[best] / 1000)}, to ` +
      `${quote(keys[best])}. ${shown} of ${S} keys have at least ${fixed(limit / 1000, 2)}.`;
    drawRow(n, i, limit);
    if (model.get("head").length) drawRoles(n);
    drawLines(n, i, limit);
  }

  function drawRow(n, i, limit) {
    row.replaceChildren(
      h("caption", {}, "What the query reads"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col", class: "cx-name" }, "key"),
        ...cells("th", ["weight", "mean of all heads"], { scope: "col" }))),
      h("tbody", {}, ...keys.map((key, j) => {
        const weight = h("td", { class: "cx-cell" }, W[n][i][j] >= limit ? fixed(W[n][i][j] / 1000) : "hidden");
        paint(weight, BLUES, W[n][i][j] >= limit ? W[n][i][j] / 1000 : 0);
        const mean = W.reduce((sum, maps) => sum + maps[i][j], 0) / (1000 * W.length);
        return h("tr", {}, h("th", { scope: "row", class: "cx-name", title: key }, key), weight, h("td", {}, fixed(mean, 2)));
      })));
  }

  function drawRoles(n) {
    roles.replaceChildren(
      h("caption", {}, "What the heads do"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col", class: "cx-name" }, "head"), ...cells("th", model.get("head"), { scope: "col" }))),
      h("tbody", {}, ...heads.map((name, m) => h("tr", m === n ? { style: "font-weight:600" } : {},
        h("th", { scope: "row", class: "cx-name", title: name, style: m === n ? "font-weight:600" : "" }, name),
        ...cells("td", model.get("measures")[m], m === n ? { style: "font-weight:600" } : {})))));
  }

  function drawLines(n, i, limit) {
    const tall = Math.max(T, S) * ROW, width = 110;
    const names = (texts, side) => h("div", { style: `text-align:${side};max-width:8em` }, ...texts.map((text, k) =>
      h("div", { style: `height:${ROW}px;line-height:${ROW}px;overflow:hidden;text-overflow:ellipsis;white-space:nowrap;` +
        (side === "right" ? `cursor:pointer;${k === i ? "font-weight:700" : ""}` : ""), title: text,
        ...(side === "right" ? { onclick: () => change("query")(k) } : {}) }, text)));
    const fan = picture(width, tall, (pen) => {
      const line = (a, b, color, thick, strength) => {
        pen.globalAlpha = strength; pen.strokeStyle = color; pen.lineWidth = thick;
        pen.beginPath(); pen.moveTo(4, (a + 0.5) * ROW); pen.lineTo(width - 4, (b + 0.5) * ROW); pen.stroke();
      };
      W[n].forEach((weights, a) => weights.forEach((weight, b) => {
        if (a !== i && weight >= Math.max(20, limit)) line(a, b, "#8A8A8A", 1.2, 0.6 * weight / 1000);
      }));
      W[n][i].forEach((weight, b) => { if (weight >= Math.max(5, limit)) line(i, b, "#2F8FD0", 1 + 4 * weight / 1000, 0.25 + 0.75 * weight / 1000); });
    });
    lines.replaceChildren(names(queries, "right"), fan, names(keys, "left"));
  }

  for (const name in first) model.on("change:" + name, draw);
  draw();
  el.append(h("div", { class: "cx-controls" }, head.node, query.node, least.node, reset), sentence, grid,
    h("div", { class: "cx-columns" }, scroller("Lines from queries to keys", lines), scroller("What the query reads", row),
      ...(model.get("head").length ? [scroller("What the heads do", roles)] : [])));
}
