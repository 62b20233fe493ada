// Two positions: every pair of dimensions as a hand that turns, the rotation between them, similarity by distance.
function render({ model, el }) {
  const rates = floats([model.get("frequencies")])[0], length = model.get("length"), count = rates.length;
  const first = { position: model.get("position"), shift: model.get("shift"), pair: model.get("pair") };
  const degrees = (angle) => (angle * 180) / Math.PI;
  const similarity = (k) => rates.reduce((sum, rate) => sum + Math.cos(k * rate), 0) / count;
  const wave = (i) => fixed((2 * Math.PI) / rates[i], 1);

  const change = (name) => (value) => { model.set(name, value); model.save_changes(); };
  const position = slider("Position p", { min: 0, max: length - 1, step: 1 }, change("position"));
  const shift = slider("Shift n", { min: 0, max: length - 1, step: 1 }, change("shift"));
  const pair = choice("Pair", rates.map((_, i) => `${i}, wavelength ${wave(i)}`), change("pair"));
  const reset = button("Reset", () => { for (const name in first) model.set(name, first[name]); model.save_changes(); });
  const sentence = status(), clocks = h("div", { "aria-hidden": "true", style: "display:flex;flex-wrap:wrap;gap:6px;max-width:330px" });
  const curve = h("div", { "aria-hidden": "true" }), formula = h("div", { class: "cx-formula" });

  function draw() {
    const p = model.get("position"), k = model.get("shift"), i = model.get("pair");
    position.show(p); shift.show(k); pair.show(i);
    sentence.textContent = `Positions ${p} and ${p + k}: similarity ${fixed(similarity(k))} of at most 1, ` +
      `dot product ${fixed(count * similarity(k))} of at most ${count}. Any other p gives the same numbers.`;
    drawClocks(p, k, i);
    drawCurve(k);
    drawFormula(p, k, i);
  }

  // A hand starts at twelve and turns like a clock: sine to the right, cosine up.
  function drawClocks(p, k, chosen) {
    const hand = (angle, color) => h("div", { style: `position:absolute;left:50%;top:calc(50% - 1.5px);width:46%;height:3px;background:${color};` +
      `transform-origin:left center;transform:rotate(${degrees(angle) - 90}deg)` });
    clocks.replaceChildren(...rates.map((rate, i) => h("div", { style: `position:relative;width:46px;height:46px;border-radius:50%;cursor:pointer;` +
      `box-sizing:border-box;border:${i === chosen ? "3px solid #D55E00" : "1px solid currentColor"}`, title: `pair ${i}`, onclick: () => change("pair")(i) },
      hand((p + k) * rate, "#D55E00"), hand(p * rate, "#0072B2"))));
  }

  function drawCurve(chosen) {
    const values = [...Array(length).keys()].map(similarity), low = Math.min(0, ...values), tall = 90;
    const at = (value) => Math.round((tall * (value - low)) / (1 - low));
    curve.replaceChildren(h("div", { style: "font-weight:600;margin-bottom:4px" }, "Similarity by distance"),
      h("div", { style: `display:flex;align-items:flex-end;height:${tall}px;width:min(300px,80vw)` }, ...values.map((value, k) => {
        const zero = at(0), top = at(value), height = Math.max(2, Math.abs(top - zero));
        return h("div", { style: `flex:1 1 0;min-width:0;height:${height}px;margin-bottom:${Math.min(zero, top)}px;cursor:pointer;` +
          `background:${k === chosen ? "#D55E00" : "#0072B2"}`, title: `distance ${k}: ${fixed(value)}`, onclick: () => change("shift")(k) });
      })));
  }

  function drawFormula(p, k, i) {
    const angle = p * rates[i], turn = k * rates[i];
    const [s, c] = [Math.sin(angle), Math.cos(angle)], [st, ct] = [Math.sin(turn), Math.cos(turn)];
    formula.replaceChildren(
      h("div", {}, `Pair ${i} stands at α = ${p} · ${fixed(rates[i], 4)} and turns by β = ${k} · ${fixed(rates[i], 4)} = ${fixed(turn)} radians, wherever p is:`),
      h("div", {}, `sin at ${p + k} = cos β · sin α + sin β · cos α = ${fixed(ct)} · ${fixed(s)} + ${fixed(st)} · ${fixed(c)} = ${fixed(ct * s + st * c)}`),
      h("div", {}, `cos at ${p + k} = −sin β · sin α + cos β · cos α = ${fixed(-st)} · ${fixed(s)} + ${fixed(ct)} · ${fixed(c)} = ${fixed(ct * c - st * s)}`));
  }

  for (const name in first) model.on("change:" + name, draw);
  draw();
  const legend = h("p", { class: "cx-note" }, h("span", { class: "cx-key", style: "background:#0072B2" }), "position p  ",
    h("span", { class: "cx-key", style: "background:#D55E00" }), "position p + n; click a pair or a distance to choose it");
  el.append(h("div", { class: "cx-controls" }, position.node, shift.node, pair.node, reset), sentence,
    h("div", { class: "cx-columns" }, h("div", {}, clocks, legend), curve), formula);
}
