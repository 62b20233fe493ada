// A sparse pattern put together from window, global and random blocks, with its costs beside those of all pairs.
function render({ model, el }) {
  const get = (name) => model.get(name), N = get("blocks");
  const change = (name) => (value) => { model.set(name, value); model.save_changes(); };
  const causal = toggle("Causal", change("causal")), windowed = toggle("Window", change("windowed"));
  const window_ = slider("blocks in it", { min: 1, max: N, step: 1, spoken: (value) => `${value} blocks` }, change("window"));
  const global_ = slider("Global blocks", { min: 0, max: 4, step: 1 }, change("n_global"));
  const random = slider("Random blocks", { min: 0, max: 4, step: 1 }, change("n_random"));
  const unit = choice("Tokens in a block", get("units").map(String), change("unit"));
  const shared = choice("Heads of keys and values", get("heads").map(String), change("shared"));
  const first = Object.fromEntries(["causal", "windowed", "window", "n_global", "n_random", "unit", "shared"].map((name) => [name, get(name)]));
  const reset = button("Reset", () => { for (const name in first) model.set(name, first[name]); model.save_changes(); });
  const sentence = status(), all = h("table"), map = h("table");

  function visible(i, j) {
    if (get("causal") && j > i) return false;
    if (!get("windowed") || Math.abs(i - j) < get("window") || j < get("n_global") || i < get("n_global")) return true;
    for (let r = 0; r < get("n_random"); r++) if ((7 * i + 5 * r + i * i) % (get("causal") ? i + 1 : N) === j) return true;
    return false;
  }

  function amount(value) {
    const prefixes = ["", " k", " M", " G", " T", " P", " E"];
    let size = 0;
    while (value >= 999.5 && size < prefixes.length - 1) { value /= 1000; size++; }
    return size === 0 ? String(Math.trunc(value)) : value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0) + prefixes[size];
  }
  const bytes = (value) => (value === 0 ? "none" : amount(value) + (value >= 999.5 ? "B" : " B"));

  function draw() {
    for (const [control, name] of [[causal, "causal"], [windowed, "windowed"], [window_, "window"], [global_, "n_global"],
      [random, "n_random"], [unit, "unit"], [shared, "shared"]]) control.show(get(name));
    window_.input.disabled = !get("windowed");
    const grid = [...Array(N).keys()].map((i) => [...Array(N).keys()].map((j) => visible(i, j)));
    const seen = grid.flat().filter(Boolean).length, u = get("units")[get("unit")], n = u * N;
    const pairs = seen * u * u - (get("causal") ? N * (u * (u - 1) / 2) : 0), every = get("causal") ? n * (n + 1) / 2 : n * n;
    const kept = get("windowed") && get("n_random") === 0 ? Math.min(n, (get("window") + get("n_global")) * u) : n;
    const a_token = get("causal") ? get("kept") * get("heads")[get("shared")] : 0;
    const share = (100 * pairs / every).toFixed(0);
    sentence.textContent = `${seen} of ${N * N} blocks visible; at ${n} positions ${share} % of the pairs are computed.`;
    const row = (name, texts) => h("tr", {}, h("th", { scope: "row", class: "cx-name" }, name), ...cells("td", texts));
    all.replaceChildren(h("caption", {}, "What it costs"),
      h("thead", {}, h("tr", {}, h("td", {}), ...cells("th", ["visible pairs", "operations", "cache"], { scope: "col" }))),
      h("tbody", {}, row("this pattern", [amount(pairs), amount(get("operation") * pairs), bytes(a_token * kept)]),
        row("all pairs", [amount(every), amount(get("operation") * every), bytes(a_token * n)])));
    map.replaceChildren(h("caption", {}, "Blocks: 1 = visible"), h("tbody", {}, ...grid.map((line, i) => h("tr", {},
      h("th", { scope: "row", style: "font-weight:400;padding:0 4px;font-size:10px" }, String(i)), ...line.map((on) => h("td", {
        style: `padding:0;width:15px;min-width:15px;height:15px;font-size:9px;text-align:center;background:${on ? "#0072B2" : "#fff"};color:${on ? "#fff" : "#595959"}` },
      on ? "1" : "0"))))));
  }

  for (const name in first) model.on("change:" + name, draw);
  draw();
  const group = (label, ...nodes) => h("div", { class: "cx-controls", role: "group", "aria-label": label }, ...nodes);
  el.append(group("Sizes", unit.node, shared.node), group("Pattern", causal.node, windowed.node, window_.node, global_.node, random.node, reset), sentence,
    h("div", { class: "cx-columns" }, scroller("Blocks", map), scroller("What it costs", all)));
}
