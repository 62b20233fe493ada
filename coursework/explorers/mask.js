// A mask put together from its parts, in both polarities, with the expression that builds it.
function render({ model, el }) {
  const change = (name) => (value) => { model.set(name, value); model.save_changes(); };
  const get = (name) => model.get(name);
  const count = get("lengths").length, most = get("max");

  const causal = toggle("Causal", change("causal"));
  const alignment = choice("aligned", ["bottom-right (last query sees every key)", "top-left (is_causal=True of torch)"], change("alignment"));
  const windowed = toggle("Sliding window", change("windowed"));
  const window = slider("size", { min: 1, max: most, step: 1, spoken: (value) => `${value} keys` }, change("window"));
  const padding = toggle("Padding", change("padding"));
  const side = choice("on the", ["right", "left"], change("side"));
  const example = choice("Example", get("lengths").map((_, b) => String(b)), change("example"));
  const length = slider("real tokens", { min: 0, max: get("S"), step: 1 }, (value) => {
    change("lengths")(get("lengths").map((old, b) => (b === get("example") ? value : old)));
  });
  const queries = slider("Queries T", { min: 1, max: most, step: 1 }, change("T"));
  const keys = slider("Keys S", { min: 1, max: most, step: 1 }, (value) => {
    model.set("lengths", get("lengths").map((old) => (old === get("S") ? value : Math.min(old, value))));
    change("S")(value);
  });
  window.input.setAttribute("aria-label", "Window size");
  length.input.setAttribute("aria-label", "Real tokens of the example");
  alignment.input.style.maxWidth = "100%";

  const sentence = status(), warning = h("p", { class: "cx-status", style: "border-left:3px solid #D55E00;padding-left:8px" });
  const note = h("p", { class: "cx-note", style: "margin:0 0 8px" });
  const grids = h("div", { class: "cx-columns" }), code = h("div", { class: "cx-formula" });

  // Where query i stands among the keys, and what each mask says: true = may attend.
  function rules() {
    const [T, S] = [get("T"), get("S")], shift = get("alignment") === 0 ? S - T : 0, real = get("lengths")[get("example")];
    return {
      causal: (i, j) => !get("causal") || j <= i + shift,
      window: (i, j) => !get("windowed") || Math.abs(i + shift - j) < get("window"),
      padding: (i, j) => !get("padding") || (get("side") === 0 ? j < real : j >= S - real),
    };
  }

  function draw() {
    const [T, S] = [get("T"), get("S")], rule = rules();
    for (const [control, name] of [[causal, "causal"], [alignment, "alignment"], [windowed, "windowed"], [window, "window"],
      [padding, "padding"], [side, "side"], [example, "example"], [queries, "T"], [keys, "S"]]) control.show(get(name));
    length.input.max = S;
    length.show(get("lengths")[get("example")]);
    window.input.disabled = !get("windowed");
    for (const control of [side, example]) control.input.disabled = !get("padding");
    length.input.disabled = !get("padding");
    alignment.input.disabled = !get("causal") && !get("windowed");
    const mask = [...Array(T).keys()].map((i) => [...Array(S).keys()].map((j) => rule.causal(i, j) && rule.window(i, j) && rule.padding(i, j)));
    const label = get("tokens"), key = (j) => (label && j < label.length ? label[j] : String(j));
    const place = (i) => i + S - T, query = (i) => (label && place(i) >= 0 && place(i) < label.length ? label[place(i)] : String(i));
    grids.replaceChildren(
      grid("scaled_dot_product_attention: 1 = may attend", mask, query, key, (visible) => (visible ? "1" : "0")),
      grid("nn.MultiheadAttention: 1 = hidden", mask, query, key, (visible) => (visible ? "0" : "1")));
    const seen = mask.flat().filter(Boolean).length, empty = mask.flatMap((row, i) => (row.some(Boolean) ? [] : [i]));
    const whose = get("padding") ? ` in example ${get("example")}` : "";
    sentence.textContent = `${seen} of ${T * S} cells visible${whose}. ` + (empty.length === 0 ? "Every query sees at least one key."
      : `Empty row${empty.length > 1 ? "s" : ""}: ${empty.map((i) => `query ${i} (${quote(query(i))})`).join(", ")}.`);
    warning.hidden = empty.length === 0;
    warning.textContent = "A query with nothing to attend to: its softmax is 0/0. By default nn.MultiheadAttention " +
      "returns NaN there; the attention of this course returns zero.";
    note.hidden = T === S || alignment.input.disabled;
    note.textContent = get("alignment") === 0
      ? `T and S differ: the last query stands on the last key, so query 0 stands on position ${S - T}. Right with a cache of earlier keys.`
      : "T and S differ: query 0 stands on key 0, as if nothing came before. With a cache of earlier keys this hides too much.";
    drawCode(T, S);
  }

  function grid(title, mask, query, key, text) {
    const long = mask[0].some((_, j) => key(j).length > 2);
    return scroller(title, h("table", {}, h("caption", {}, title),
      h("thead", {}, h("tr", {}, h("td", {}), ...mask[0].map((_, j) => h("th", { scope: "col", title: key(j), style:
        "padding:1px 0;text-align:center;max-width:22px;overflow:hidden;text-overflow:clip;font-weight:400" }, long ? turned(key(j)) : key(j))))),
      h("tbody", {}, ...mask.map((row, i) => h("tr", {}, h("th", { scope: "row", class: "cx-name", title: query(i), style: "max-width:5em" }, query(i)),
        ...row.map((visible) => {
          const cell = h("td", { class: "cx-cell", style: "padding:0;width:22px;min-width:22px;height:22px;text-align:center" });
          if (visible) { cell.style.background = "#0072B2"; cell.style.color = "#fff"; cell.append(text(visible)); }
          else { cell.style.background = HATCH; cell.append(h("span", { style: "background:#fff;color:#000;padding:0 2px" }, text(visible))); }
          return cell;
        }))))));
  }

  function turned(name) {
    return h("span", { style: "writing-mode:vertical-rl;transform:rotate(180deg);max-height:6em;overflow:hidden" }, name);
  }

  // The expressions that build exactly what the cells show, with the names of course_lib.masks.
  function drawCode(T, S) {
    const size = T === S ? `${T}` : `${T}, ${S}`, w = get("window"), corner = get("alignment") === 1 && T !== S;
    const position = !get("causal") && !get("windowed") ? null
      : corner ? `torch.ones(${T}, ${S}, dtype=torch.bool)` + (get("causal") ? ".tril()" : `.tril(${w - 1})`) + (get("windowed") ? `.triu(${1 - w})` : "")
      : !get("windowed") ? `causal_mask(${size})` : `sliding_window_mask(${size}, window=${w}${get("causal") ? "" : ", causal=False"})`;
    const pad = get("padding") ? `length_mask([${get("lengths").join(", ")}], ${S})${get("side") === 1 ? ".flip(-1)" : ""}` : null;
    const both = position && pad ? `combine_masks(${position}, ${pad})` : position || pad || "None";
    const shape = pad ? `(${count}, 1, ${position ? T : 1}, ${S})` : position ? `(${T}, ${S})` : "";
    const arguments_ = [position ? `attn_mask=~${position}` : null, pad ? `key_padding_mask=~${pad}[:, 0, 0]` : null].filter(Boolean);
    code.replaceChildren(
      h("div", {}, "scaled_dot_product_attention, True = may attend", shape ? `, shape ${shape}:` : ":"), h("div", {}, h("code", {}, "mask = " + both)),
      h("div", {}, "nn.MultiheadAttention, True = hidden:"), ...(arguments_.length ? arguments_ : ["no mask"]).map((line) => h("div", {}, h("code", {}, line))));
  }

  for (const name of ["T", "S", "lengths", "causal", "padding", "side", "windowed", "window", "example", "alignment"]) model.on("change:" + name, draw);
  draw();
  const group = (label, ...nodes) => h("div", { class: "cx-controls", role: "group", "aria-label": label }, ...nodes);
  el.append(group("Size", queries.node, keys.node), group("Causal mask", causal.node, alignment.node), group("Window mask", windowed.node, window.node),
    group("Padding mask", padding.node, side.node, example.node, length.node), sentence, warning, note, grids, code);
}
