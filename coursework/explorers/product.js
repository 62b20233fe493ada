// One cell of Q K^T: two vectors, the products of their components, the sum, the scaled score.
function render({ model, el }) {
  const Q = floats(model.get("query")), K = floats(model.get("key"));
  const queries = names(model.get("tokens")), keys = names(model.get("keyTokens")), E = Q[0].length, root = Math.sqrt(E);
  const scores = Q.map((q) => K.map((k) => dot(q, k))), reach = Math.max(...scores.flat().map(Math.abs));
  const listed = 12; // components; the rest is summed in one line
  const length = (vector) => Math.sqrt(dot(vector, vector));

  const set = (values) => { for (const name in values) model.set(name, values[name]); model.save_changes(); };
  const query = choice("Query", queries, (row) => { set({ row }); follow(); });
  const key = choice("Key", keys, (column) => { set({ column }); follow(); });
  const scaled = toggle(`Divide by √E = ${fixed(root, 2)}`, (value) => set({ scaled: value }));
  const sentence = status(), detail = h("table"), formula = h("div", { class: "cx-formula" });

  const cell = (i, j) => h("td", { ...FOCUSABLE, class: "cx-cell", role: "gridcell", tabindex: "-1",
    style: "cursor:pointer;min-width:40px;outline-offset:-4px;outline-color:currentColor",
    onclick: () => { set({ row: i, column: j }); grid[i][j].focus(); }, onpointerenter: (event) => { if (event.pointerType === "mouse") set({ row: i, column: j }); },
    onkeydown: (event) => move(event, i, j) });
  const grid = Q.map((_, i) => K.map((_, j) => cell(i, j)));
  const heads = keys.map((name) => h("th", { scope: "col", role: "columnheader", class: "cx-name", title: name, style: "max-width:4.2em;text-align:right" }, name));
  const sides = queries.map((name) => h("th", { scope: "row", role: "rowheader", class: "cx-name", title: name }, name));
  const board = h("table", { role: "grid", "aria-label": "Scores, rows are queries, columns are keys; arrow keys move" },
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, h("td", { role: "gridcell" }), ...heads)),
    h("tbody", { role: "rowgroup" }, ...grid.map((row, i) => h("tr", { role: "row" }, sides[i], ...row))));

  function move(event, i, j) {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -j], End: [0, keys.length - 1 - j] };
    if (!(event.key in steps) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const row = Math.min(queries.length - 1, Math.max(0, i + steps[event.key][0]));
    const column = Math.min(keys.length - 1, Math.max(0, j + steps[event.key][1]));
    set({ row, column });
    grid[row][column].focus();
  }

  // On a narrow screen the grid scrolls in its frame: bring the chosen cell into view there, without moving the page.
  function follow() {
    const frame = board.parentNode.getBoundingClientRect(), chosen = grid[model.get("row")][model.get("column")].getBoundingClientRect();
    if (chosen.left < frame.left || chosen.right > frame.right) board.parentNode.scrollLeft += chosen.right - (frame.left + frame.right) / 2;
  }

  function draw() {
    const i = model.get("row"), j = model.get("column"), divisor = model.get("scaled") ? root : 1;
    query.show(i); key.show(j); scaled.show(model.get("scaled"));
    grid.forEach((row, a) => row.forEach((node, b) => {
      const chosen = a === i && b === j;
      node.textContent = fixed(scores[a][b] / divisor, 2);
      paintSigned(node, scores[a][b], reach);
      node.tabIndex = chosen ? 0 : -1;
      node.setAttribute("aria-selected", String(chosen));
      node.style.boxShadow = chosen ? "inset 0 0 0 2px #000, 0 0 0 2px #fff" : "none";
      node.style.position = chosen ? "relative" : "static";
    }));
    heads.forEach((node, b) => { node.style.textDecoration = b === j ? "underline 3px #D55E00" : "none"; });
    sides.forEach((node, a) => { node.style.textDecoration = a === i ? "underline 3px #0072B2" : "none"; });
    drawDetail(i, j);
    say(i, j);
  }

  function drawDetail(i, j) {
    const products = Q[i].map((x, e) => x * K[j][e]), most = Math.max(...products.map(Math.abs), 1e-30);
    const order = products.map((_, e) => e);
    const shown = E <= listed ? order : [...order].sort((a, b) => Math.abs(products[b]) - Math.abs(products[a])).slice(0, listed - 1);
    const rest = order.filter((e) => !shown.includes(e));
    const bar = (x) => h("td", {}, h("div", { style: "position:relative;width:clamp(44px,12vw,80px);height:14px" },
      h("div", { style: "position:absolute;left:50%;top:0;bottom:0;border-left:1px solid currentColor" }),
      h("div", { style: `position:absolute;top:1px;bottom:1px;width:${(50 * Math.abs(x)) / most}%;${x < 0 ? "right" : "left"}:50%;` +
        `background:${x < 0 ? "#4393c3" : "#d6604d"}` })));
    const line = (e) => h("tr", {}, h("th", { scope: "row" }, String(e)), ...cells("td", [Q[i][e], K[j][e], products[e]].map((x) => fixed(x))), bar(products[e]));
    const others = rest.length ? [h("tr", {}, h("th", { scope: "row", colspan: 3 }, `${rest.length} smaller ones together`),
      h("td", {}, fixed(rest.reduce((sum, e) => sum + products[e], 0))), h("td", {}))] : [];
    const total = (name, x) => h("tr", {}, h("th", { scope: "row", colspan: 3 }, name), h("td", {}, fixed(x)), h("td", {}));
    const sum = total("sum, the score q·k", scores[i][j]);
    sum.className = "cx-total";
    detail.replaceChildren(
      h("caption", {}, `${quote(queries[i])} asks, ${quote(keys[j])} answers`),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "component"), h("th", { scope: "col" }, h("span", { class: "cx-key", style: "background:#0072B2" }), "q"),
        h("th", { scope: "col" }, h("span", { class: "cx-key", style: "background:#D55E00" }), "k"), h("th", { scope: "col" }, "q × k"), h("td", {}))),
      h("tbody", {}, ...shown.map(line), ...others, sum, total(`÷ √${E} = ${fixed(root, 2)}`, scores[i][j] / root)));
    const [a, b] = [length(Q[i]), length(K[j])];
    formula.textContent = a * b === 0 ? "One of the two vectors is zero, so the score is zero."
      : `q·k = |q| · |k| · cos = ${fixed(a)} · ${fixed(b)} · ${fixed(scores[i][j] / (a * b))} = ${fixed(scores[i][j])}`;
  }

  function say(i, j) {
    const rank = scores[i].filter((score) => score > scores[i][j]).length + 1;
    sentence.textContent = `Query ${quote(queries[i])}, key ${quote(keys[j])}: score ${fixed(scores[i][j])}, ` +
      `${fixed(scores[i][j] / root)} after the division; rank ${rank} of ${keys.length} for this query.`;
  }

  for (const name of ["row", "column", "scaled"]) model.on("change:" + name, draw);
  draw();
  el.append(h("div", { class: "cx-controls" }, query.node, key.node, scaled.node), sentence,
    h("div", { class: "cx-columns" }, h("div", { class: "cx-scroll" }, board), scroller("Products of the components", detail)), formula);
  requestAnimationFrame(follow);
}
