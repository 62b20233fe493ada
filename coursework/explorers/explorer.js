// Helpers that the explorers share. No imports, no network, nothing global: each output carries its own closure.

// JupyterLab takes key presses from focused controls unless the control itself carries this attribute.
const FOCUSABLE = { "data-lm-suppress-shortcuts": "true" };

const STYLE = `
.cx { color: var(--jp-content-font-color1, var(--vscode-foreground, inherit)); line-height: 1.45;
  font-family: var(--jp-content-font-family, system-ui, sans-serif); font-size: 14px; margin: 4px 0 8px; }
.cx-controls { display: flex; flex-wrap: wrap; gap: 6px 20px; align-items: center; margin: 0 0 8px; padding: 0; border: 0; min-width: 0; }
.cx-controls legend { padding: 0; font-weight: 600; float: left; margin-right: 4px; }
.cx-control { display: flex; flex-wrap: wrap; align-items: center; gap: 2px 8px; min-width: 0; }
.cx-control input[type=range] { width: 130px; margin: 0; accent-color: #0072B2; }
.cx-control input[type=checkbox], .cx-control input[type=radio] { width: 16px; height: 16px; margin: 0; accent-color: #0072B2; }
.cx-control select, .cx button { font: inherit; color: inherit; padding: 3px 8px; max-width: 12em; border-radius: 3px;
  background: var(--jp-layout-color1, var(--vscode-input-background, transparent));
  border: 1px solid var(--jp-border-color0, currentColor); }
.cx-control option { color: var(--jp-content-font-color1, CanvasText); background: var(--jp-layout-color1, Canvas); }
.cx-value { min-width: 2.2em; font-variant-numeric: tabular-nums; }
.cx :focus-visible, [data-explorer] > details :focus-visible { outline: 2px solid var(--jp-brand-color1, #0072B2); outline-offset: 2px; }
.cx [hidden] { display: none; }
.cx-columns { display: flex; flex-wrap: wrap; gap: 12px 20px; align-items: flex-start; }
.cx-columns > * { min-width: 0; max-width: 100%; }
.cx-scroll { overflow-x: auto; padding: 3px; }
.cx table { border-collapse: collapse; border: 0; margin: 0; font-size: 13px; font-variant-numeric: tabular-nums; table-layout: auto; }
.cx caption { text-align: left; font-weight: 600; padding: 0 0 4px; caption-side: top; color: inherit; white-space: normal; }
.cx tr, .cx tr:nth-child(n), .cx tr:hover { background: none; }
.cx td, .cx th { padding: 1px 6px; border: 0; text-align: right; vertical-align: middle; white-space: nowrap; color: inherit; font-weight: 400; max-width: none; }
.cx thead th { font-weight: 600; }
.cx thead tr { border-bottom: 1px solid var(--jp-border-color1, currentColor); }
.cx .cx-total { border-top: 1px solid var(--jp-border-color1, currentColor); font-weight: 600; }
.cx .cx-total > * { font-weight: 600; }
.cx .cx-name { text-align: left; max-width: 7em; overflow: hidden; text-overflow: ellipsis; }
.cx .cx-cell { border: 1px solid var(--jp-layout-color0, #fff); }
.cx-status { margin: 0 0 8px; }
.cx-formula { margin: 8px 0 0; padding: 6px 10px; border-left: 3px solid #CC79A7; overflow-wrap: anywhere; }
.cx-formula > div + div { margin-top: 3px; }
.cx-note { font-size: 13px; margin: 4px 0 0; }
.cx-key { display: inline-block; width: 10px; height: 10px; margin-right: 5px; border-radius: 2px; }
.cx code { font-size: 13px; background: none; color: inherit; padding: 0; }
`;

// An element: attributes by name, `onclick` and the like as listeners, false and null left out.
function h(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

// Native controls with visible labels. Each calls `change` with its new value and has `show(value)` to follow the model.
function labelled(label, input, ...more) {
  input.id = "cx-" + Math.random().toString(36).slice(2); // lives in the page only, never in the stored output
  const parts = [h("label", { for: input.id }, label), input];
  return h("div", { class: "cx-control" }, ...(input.type === "checkbox" ? parts.reverse() : parts), ...more);
}

function choice(label, options, change) {
  const input = h("select", { ...FOCUSABLE, onchange: () => change(Number(input.value)) },
    ...options.map((text, index) => h("option", { value: index }, text)));
  return { input, node: labelled(label, input), show: (value) => { input.value = value; } };
}

function slider(label, { min, max, step, digits = 0, spoken = null }, change) {
  const input = h("input", { ...FOCUSABLE, type: "range", min, max, step, oninput: () => change(Number(input.value)) });
  const shown = h("span", { class: "cx-value", "aria-hidden": "true" });
  return {
    input,
    node: labelled(label, input, shown),
    show: (value) => {
      input.value = value;
      shown.textContent = fixed(value, digits);
      input.setAttribute("aria-valuetext", spoken ? spoken(value) : fixed(value, digits));
    },
  };
}

function toggle(label, change) {
  const input = h("input", { ...FOCUSABLE, type: "checkbox", onchange: () => change(input.checked) });
  return { input, node: labelled(label, input), show: (value) => { input.checked = value; } };
}

function button(label, press) {
  return h("button", { ...FOCUSABLE, type: "button", onclick: press }, label);
}

// A sentence that screen readers speak when it changes.
function status() {
  return h("p", { class: "cx-status", role: "status" });
}

// Wide content scrolls inside its own frame, never the page; the frame can be scrolled with the keyboard.
function scroller(label, child) {
  return h("div", { ...FOCUSABLE, class: "cx-scroll", tabindex: "0", role: "region", "aria-label": label }, child);
}

function cells(tag, texts, attributes = {}) {
  return texts.map((text) => h(tag, attributes, text));
}

// Decimals as Python writes them: exact ties go to the even digit; a true minus sign, no negative zero.
function fixed(x, digits = 3) {
  const size = Math.abs(x), scaled = size * 10 ** digits;
  const tie = Number.isInteger(size * 2 ** (digits + 1)) && scaled % 1 === 0.5;
  const text = (tie ? (2 * Math.round(scaled / 2)) / 10 ** digits : size).toFixed(digits);
  return x < 0 && Number(text) !== 0 ? "\u2212" + text : text;
}

// The float32 numbers that Python holds.
function floats(rows) {
  return rows.map((row) => row.map(Math.fround));
}

function dot(a, b) {
  return a.reduce((sum, x, index) => sum + x * b[index], 0);
}

function quote(token) {
  return "\u201c" + token + "\u201d";
}

// Names of positions; equal tokens are told apart by their position.
function names(tokens) {
  return tokens.map((token, index) => (tokens.indexOf(token) === tokens.lastIndexOf(token) ? token : `${token} (${index})`));
}

// Colours of data cells: those of the static figures, opaque in every theme, so that the ink is always readable.
const BLUES = ["#f7fbff", "#6baed6", "#08306b"], SIGNED = ["#2166ac", "#f7f7f7", "#b2182b"];

function channels(color) {
  return [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
}

function ink(rgb) {
  const [r, g, b] = rgb.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.1791 ? "#000" : "#fff";
}

// Colour a node by a share from 0 to 1 along three colours.
function paint(node, colors, share) {
  const place = 2 * Math.min(1, Math.max(0, share)), start = place < 1 ? 0 : 1;
  const [from, to] = [channels(colors[start]), channels(colors[start + 1])];
  const rgb = from.map((c, n) => Math.round(c + (to[n] - c) * (place - start)));
  node.style.background = `rgb(${rgb})`;
  node.style.color = ink(rgb);
}

function paintSigned(node, value, reach) {
  paint(node, SIGNED, reach > 0 ? 0.5 + (0.45 * value) / reach : 0.5);
}

const HATCH = "repeating-linear-gradient(135deg, #fff 0 3px, #949494 3px 4px)";

// The model of the widget protocol, held in the page; `changed` is called after every change.
function pageModel(state, changed) {
  const listeners = {};
  return {
    get: (name) => state[name],
    set(name, value) {
      state[name] = value;
      (listeners["change:" + name] || []).forEach((listener) => listener());
      changed();
    },
    save_changes() {},
    on: (event, listener) => (listeners[event] = listeners[event] || []).push(listener),
  };
}

// Bring every output of this explorer to life; whatever goes wrong, the static figure stays.
function mount(name, render) {
  for (const host of document.querySelectorAll(`[data-explorer="${name}"]:not([data-mounted])`)) {
    host.setAttribute("data-mounted", "");
    const image = host.querySelector("figure > img"), el = h("div", { class: "cx" });
    try {
      // The caption speaks of the first state: it says so as soon as another one is shown.
      const state = JSON.parse(host.dataset.state), first = JSON.parse(host.dataset.state);
      const then = h("span", { hidden: true }, "At first: ");
      const follow = () => { then.hidden = Object.keys(first).every((name) => JSON.stringify(first[name]) === JSON.stringify(state[name])); };
      // JupyterLab and others style bare tables and code: outrank them.
      el.append(h("style", {}, STYLE.replaceAll(".cx ", ".cx.cx.cx ")));
      render({ model: pageModel(state, follow), el });
      host.querySelector("figcaption").prepend(then);
      image.before(el);
      image.hidden = true;
    } catch (error) {
      el.remove();
      console.error(error);
    }
  }
}
