// One query of attention: scores, weights, weighted values, output, under a scale and a temperature.
function render({ model, el }) {
  const Q = floats(model.get("query")), K = floats(model.get("key")), V = floats(model.get("value"));
  const queries = names(model.get("tokens")), keys = names(model.get("keyTokens")), mask = model.get("mask");
  const root = Math.sqrt(Q[0].length), first = { selected: model.get("selected"), scaled: true, temperature: 1 };
  const columns = Math.min(V[0].length, 6);

  const attend = (i, divisor) => {
    const scores = K.map((key) => dot(Q[i], key));
    const logits = scores.map((score, j) => (mask === null || mask[i][j] === "1" ? score / divisor : -Infinity));
    const top = Math.max(...logits);
    const powers = logits.map((logit) => (top === -Infinity ? 0 : Math.exp(logit - top)));
    const total = powers.reduce((sum, power) => sum + power, 0);
    const weights = powers.map((power) => (total > 0 ? power / total : 0));
    return { scores, logits, weights, seen: logits.filter((logit) => logit > -Infinity).length };
  };

  const change = (name) => (value) => { model.set(name, value); model.save_changes(); };
  const query = choice("Query", queries, change("selected"));
  const scaled = toggle(`Divide by √E = ${fixed(root, 2)}`, change("scaled"));
  const temperature = slider("Temperature", { min: 0.1, max: 5, step: 0.1, digits: 1 }, change("temperature"));
  const reset = button("Reset", () => { for (const name in first) model.set(name, first[name]); model.save_changes(); });
  const sentence = status(), table = h("table"), sums = h("table"), map = h("div", { "aria-hidden": "true" });
  const formula = h("div", { class: "cx-formula" });

  function draw() {
    const i = model.get("selected"), divisor = (model.get("scaled") ? root : 1) * model.get("temperature");
    query.show(i); scaled.show(model.get("scaled")); temperature.show(model.get("temperature"));
    const now = attend(i, divisor), other = attend(i, model.get("temperature") * (model.get("scaled") ? 1 : root));
    const best = now.weights.indexOf(Math.max(...now.weights));
    const output = V[0].map((_, e) => dot(now.weights, V.map((row) => row[e])));
    say(i, now, best);
    drawRow(now, other, divisor);
    drawSums(now, output);
    drawMap(i, divisor);
    drawFormula(i, now, best, divisor, output);
  }

  function say(i, now, best) {
    const entropy = now.weights.reduce((sum, w) => (w > 0 ? sum - w * Math.log(w) : sum), 0);
    sentence.textContent = now.seen === 0
      ? `${quote(queries[i])} may attend to nothing: all its weights are zero, and so is its output.`
      : `${quote(queries[i])} gives its largest weight, ${fixed(now.weights[best])}, to ${quote(keys[best])}. ` +
        `Entropy ${fixed(entropy)} of at most ${fixed(Math.log(now.seen))} nats, ` +
        `as if ${fixed(Math.exp(entropy), 1)} keys were read equally.`;
  }

  function drawRow(now, other, divisor) {
    const bar = (j) => {
      const track = h("div", { style: "position:relative;width:clamp(56px,18vw,90px);height:14px;border-left:1px solid currentColor" });
      track.append(h("div", { style: `width:${100 * now.weights[j]}%;height:100%;background:#0072B2` }));
      const left = `left:calc(${100 * other.weights[j]}% - 1px)`;
      track.append(h("div", { style: `position:absolute;top:-2px;bottom:-2px;width:2px;background:#D55E00;${left}` }));
      return track;
    };
    legend.replaceChildren(h("span", { class: "cx-key", style: "background:#0072B2" }), "weight  ",
      h("span", { class: "cx-key", style: "background:#D55E00;width:3px" }), model.get("scaled") ? "not divided by √E" : "divided by √E");
    table.replaceChildren(
      h("caption", {}, "From scores to weights"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col", class: "cx-name" }, "key"),
        ...cells("th", ["q·k", `÷ ${fixed(divisor, 2)}`, "weight"], { scope: "col" }), h("td", {}))),
      h("tbody", {}, ...keys.map((key, j) => h("tr", {}, h("th", { scope: "row", class: "cx-name", title: key }, key),
        ...cells("td", [fixed(now.scores[j]), now.logits[j] === -Infinity ? "masked" : fixed(now.logits[j]), fixed(now.weights[j])]),
        h("td", {}, bar(j))))));
  }

  function drawSums(now, output) {
    const reach = Math.max(...V.flat().map(Math.abs));
    const strip = (numbers) => numbers.slice(0, columns).map((x) => {
      const cell = h("td", { class: "cx-cell" }, fixed(x, 2));
      paintSigned(cell, x, reach);
      return cell;
    });
    const more = V[0].length > columns ? `, first ${columns} of ${V[0].length} components` : "";
    sums.replaceChildren(
      h("caption", {}, `Weight × value${more}`),
      h("thead", {}, h("tr", {}, h("th", { scope: "col", class: "cx-name" }, "key"),
        ...cells("th", output.slice(0, columns).map((_, e) => String(e)), { scope: "col" }))),
      h("tbody", {}, ...keys.map((key, j) => h("tr", {}, h("th", { scope: "row", class: "cx-name", title: key }, key),
        ...strip(V[j].map((x) => now.weights[j] * x)))),
      h("tr", { class: "cx-total" }, h("th", { scope: "row", class: "cx-name" }, "output"), ...strip(output))));
  }

  function drawMap(chosen, divisor) {
    const width = Math.max(6, Math.min(22, Math.floor(150 / keys.length)));
    const small = "font-size:12px;overflow:hidden;text-overflow:ellipsis;white-space:nowrap", room = 62;
    const heads = keys.map((key) => h("span", { style: `${small};width:${width}px;max-height:${room}px;writing-mode:vertical-rl;transform:rotate(180deg)` }, key));
    map.replaceChildren(h("div", { style: "font-weight:600" }, "All queries"),
      h("div", { style: "font-size:12px;margin-bottom:4px" }, "a row reads, a column is read"),
      h("div", { style: `display:flex;align-items:end;padding-left:${room}px` }, ...heads), ...queries.map((_, i) => {
      const { weights, logits } = attend(i, divisor);
      const frame = i === chosen ? "outline:2px solid #E69F00;position:relative" : "";
      return h("div", { style: `display:flex;width:max-content;cursor:pointer;${frame}`, title: queries[i], onclick: () => change("selected")(i) },
        h("span", { style: `${small};width:${room}px;box-sizing:border-box;padding-right:5px;text-align:right` }, queries[i]),
        ...weights.map((weight, j) => {
          const cell = h("span", { style: `width:${width}px;height:${width}px;box-sizing:border-box;border:1px solid #fff` });
          paint(cell, BLUES, weight);
          if (logits[j] === -Infinity) cell.style.background = HATCH;
          return cell;
        }));
    }));
  }

  function drawFormula(i, now, best, divisor, output) {
    const few = (list) => list.length <= 5 ? list : [...list.slice(0, 4), "…"];
    const vector = (numbers) => "[" + few(numbers.map((x) => fixed(x, 2))).join(", ") + "]";
    const power = (x) => h("span", {}, "e", h("sup", {}, fixed(x)));
    const joined = (nodes, sign) => nodes.flatMap((node, n) => (n ? [sign, node] : [node]));
    const order = keys.map((_, j) => j).filter((j) => now.logits[j] > -Infinity);
    const shown = order.length <= 5 ? order : [...order].sort((a, b) => now.weights[b] - now.weights[a]).slice(0, 4);
    const rest = order.length > shown.length ? [` + … (${order.length - shown.length} more)`] : [];
    if (now.seen === 0) { formula.replaceChildren(h("div", {}, "softmax over no key at all is 0/0; by convention the output is zero.")); return; }
    formula.replaceChildren(
      h("div", {}, `q·k = ${vector(Q[i])} · ${vector(K[best])} = ${fixed(now.scores[best])} for key ${quote(keys[best])}`),
      h("div", {}, "weight = ", power(now.logits[best]), " / (", ...joined(shown.map((j) => power(now.logits[j])), " + "), ...rest,
        `) = ${fixed(now.weights[best])}`),
      h("div", {}, "output = " + shown.map((j) => `${fixed(now.weights[j])} · ${vector(V[j])}`).join(" + ") + rest.join("") + ` = ${vector(output)}`));
  }

  const legend = h("p", { class: "cx-note" });
  for (const name in first) model.on("change:" + name, draw);
  draw();
  el.append(h("div", { class: "cx-controls" }, query.node, scaled.node, temperature.node, reset), sentence,
    h("div", { class: "cx-columns" }, h("div", {}, scroller("From scores to weights", table), legend),
      scroller("Weight times value", sums), map), formula);
}
