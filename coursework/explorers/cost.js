// Costs of a Transformer: the formulas of course_lib.scaling, for a published model or sizes of one's own.
function render({ model, el }) {
  const presets = model.get("presets"), choices = model.get("choices");
  const dials = ["model", "layers", "heads", "head_width", "kv_heads", "length", "batch", "number_bytes", "processes", "recompute"];
  const first = {};
  for (const name of dials) first[name] = model.get(name);
  const change = (name) => (value) => { model.set(name, value); model.save_changes(); };
  const pick = (label, name, texts) => {
    const values = name === "number_bytes" ? [4, 2] : choices[name];
    const made = choice(label, texts || values.map(String), (index) => change(name)(values[index]));
    return { node: made.node, show: () => made.show(values.indexOf(model.get(name))) };
  };
  const preset = choice("Model", presets.map((p) => p[0]), (index) => {
    const p = presets[index];
    for (const [name, value] of [["model", index], ["layers", p[2]], ["heads", p[3]], ["head_width", p[4]], ["kv_heads", p[8]]]) model.set(name, value);
    model.save_changes();
  });
  const layers = slider("Layers", { min: 1, max: 128, step: 1 }, change("layers"));
  const heads = slider("Heads", { min: 1, max: 128, step: 1 }, change("heads"));
  const picks = [
    pick("Width of a head", "head_width"), pick("Heads of keys and values", "kv_heads", ["one each", "8", "1"]),
    pick("Tokens in a sequence", "length"), pick("Sequences", "batch"),
    pick("Numbers", "number_bytes", ["float32", "bfloat16"]), pick("Processes", "processes"),
  ];
  const recompute = toggle("Recompute activations", change("recompute"));
  const reset = button("Reset", () => { for (const name of dials) model.set(name, first[name]); model.save_changes(); });
  const sentence = status(), count = h("table"), operations = h("table"), memory = h("table");
  const code = h("code"), shown = h("pre", { style: "margin:0;white-space:pre-wrap;background:none;color:inherit" }, code);

  // Whole numbers with commas, and large ones with a power of ten, as Python's power_of_ten(x, 4) writes it.
  const whole = (x) => String(x).replace(/\B(?=(\d{3})+$)/g, ",");
  const raised = (digits) => [...digits].map((digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]).join("");
  const short = (x) => x.toExponential(3).replace(/e\+(\d+)$/, (_, digits) => "·10" + raised(digits));
  const gib = (x) => fixed(x / 2 ** 30, 2);
  const sum = (pieces) => pieces.reduce((total, [, value]) => total + value, 0);

  function costs() {
    const [name, family, , , , ratio, V, P] = presets[model.get("model")];
    const L = model.get("layers"), H = model.get("heads"), E = model.get("head_width"), B = model.get("batch");
    const T = model.get("length"), w = model.get("number_bytes"), again = model.get("recompute"), ranks = model.get("processes");
    const D = H * E, F = Math.floor(ratio * D + 0.5), kv = model.get("kv_heads"), G = kv && H % kv === 0 ? kv : H;
    const paper = family === "paper", llama = family === "Llama", bias = !llama, n = B * T;

    const maps = 2 * D * H * E + 2 * D * G * E, attentions = paper ? 3 : 1, stacks = paper ? 2 : 1;
    const norm = bias ? 2 * D : D;
    const parameters = [
      ["token tables", V * D], ["positions", P * D],
      ["attention", L * attentions * (maps + (bias ? H * E + 2 * G * E + D : 0))],
      ["feed-forward", L * stacks * ((llama ? 3 : 2) * D * F + (bias ? F + D : 0))],
      ["norms", (L * (paper ? 5 : 2) + (paper ? 0 : 1)) * norm], ["head", llama ? V * D : 0],
    ];
    const times = again ? 4 : 3;
    const flops = [
      ["projections", times * L * attentions * 2 * n * maps], ["scores and mixing", times * L * attentions * 4 * n * H * T * E],
      ["feed-forward", times * L * stacks * 2 * n * (llama ? 3 : 2) * D * F], ["head", 6 * n * D * V],
    ];
    const N = parameters[2][1] + parameters[3][1] + parameters[4][1] + V * D;

    const stream = n * D * w, each = n * H * E * w, copies = G < H ? 2 * each : 0;
    const kept = llama ? 2 * each + (copies || each) + (G === H ? 3 * each : 0) : n * (H + 2 * G) * E * w + copies;
    const normed = llama ? 2 * stream + 4 * n : stream + 8 * n;
    const layer = 2 * (stream + normed) + kept + 4 * n * H + each + (paper ? 1 : llama ? 4 : 2) * n * F * w;
    const stack = (again ? L * stream + layer : L * layer) + stream, cross = stream + normed + 4 * each + 4 * n * H;
    let activations = stack + n * V * w;
    if (paper) activations += stack + (again ? cross : L * cross);
    else activations += normed + (llama ? 8 * T * Math.floor(E / 2) : 8 * T);

    const bytes = sum(parameters) * w, part = Math.ceil(bytes / ranks);
    const stages = [0, 1, 2, 3].map((stage) => [
      ["weights", stage >= 3 ? part : bytes], ["gradients", stage >= 2 ? part : bytes],
      ["optimizer", 2 * (stage >= 1 ? part : bytes)], ["activations", activations],
    ]);
    const cache = 2 * L * B * G * T * (paper ? 2 : 1) * E * w;
    return { name, family, L, H, D, F, G, V, P, B, T, parameters, flops, N, six: 6 * N * n, stages, cache };
  }

  function python(c) {
    const sizes = `d_model=${c.D}, n_heads=${c.H}, d_ff=${c.F}, n_decoder_layers=${c.L}, vocab_size=${c.V}`;
    const groups = c.G < c.H ? `, n_kv_heads=${c.G}` : "";
    const rest = {
      paper: `, n_encoder_layers=${c.L}, share_vocabulary=True`,
      GPT: `, max_length=${c.P}, positions="learned", activation="gelu_tanh", norm_place="pre"`,
      Llama: ', positions="rotary", activation="silu", gated=True, norm="rms", norm_place="pre", bias=False, tie_embeddings=False',
    }[c.family];
    return `TransformerConfig(${sizes}${groups}${rest})`;
  }

  function fill(table, title, head, rows) {
    table.replaceChildren(h("caption", {}, title),
      ...(head.length ? [h("thead", {}, h("tr", {}, h("td", {}), ...cells("th", head, { scope: "col" })))] : []),
      h("tbody", {}, ...rows.map(([name, ...texts], i) => h("tr", i === rows.length - 1 ? { class: "cx-total" } : {},
        h("th", { scope: "row", style: "text-align:left" }, name), ...cells("td", texts)))));
  }

  function draw() {
    preset.show(model.get("model")); layers.show(model.get("layers")); heads.show(model.get("heads"));
    for (const one of picks) one.show();
    recompute.show(model.get("recompute"));
    const c = costs(), p = presets[model.get("model")], total = sum(c.parameters), step = sum(c.flops);
    const own = ["layers", "heads", "head_width", "kv_heads"].some((name, i) => model.get(name) !== p[[2, 3, 4, 8][i]]);
    sentence.textContent = `${own ? "Own sizes after " : ""}${c.name}, width ${c.D}: ${whole(total)} parameters. ` +
      `A training step of ${c.B} \u00d7 ${c.T} tokens has ${short(step)} operations, ${fixed(step / c.six, 2)} times 6ND ` +
      `with the ${whole(c.N)} parameters that multiply. ` +
      `The cache of these tokens takes ${gib(c.cache)} GiB.`;
    fill(count, "Parameters", [], [...c.parameters.filter(([, x]) => x).map(([name, x]) => [name, whole(x)]), ["all", whole(total)]]);
    fill(operations, "Operations of a step", [], [...c.flops.map(([name, x]) => [name, short(x)]), ["all", short(step)]]);
    fill(memory, "GiB in one process", ["stage 0", "stage 1", "stage 2", "stage 3"], [
      ...c.stages[0].map(([name], i) => [name, ...c.stages.map((stage) => gib(stage[i][1]))]),
      ["all", ...c.stages.map((stage) => gib(sum(stage)))],
    ]);
    code.textContent = python(c);
  }

  for (const name of dials) model.on("change:" + name, draw);
  draw();
  el.append(h("div", { class: "cx-controls" }, preset.node, layers.node, heads.node, ...picks.map((one) => one.node), recompute.node, reset),
    sentence, h("div", { class: "cx-columns" }, count, operations, scroller("Memory by stage", memory)),
    h("p", { class: "cx-note" }, "Stage 0 splits nothing, 1 the optimizer, 2 also gradients, 3 also weights. AdamW, no dropout; the table of scores is not kept."),
    h("div", { class: "cx-formula" }, shown));
}
