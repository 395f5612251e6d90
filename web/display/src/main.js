// The page: state, what happens when something is used, and drawing all of it anew.
import { palette } from "./colours.js";
import { LAYERS, offers, showControls } from "./controls.js";
import { openData, prepared } from "./data.js";
import { listen, showKeys } from "./keys.js";
import { Order } from "./order.js";
import { paint } from "./painting.js";
import { candidateOrder, make, showLegend, showList, showSelected, summary } from "./panel.js";
import { drawPane, pickPane, placeInPane } from "./panes.js";
import { save, savePicture } from "./picture.js";
import { Views3D, webGL } from "./views3d.js";

const $ = (id) => document.getElementById(id);
const PANES = ["etaphi", "xy", "rz"];

const state = {
  scene: null, index: 0, colour: "class", minPt: 0, classes: new Set(), layers: { ...LAYERS },
  graphLayer: 0, views: [], active: 0, selected: null, theme: "light",
};
const data = openData();
let events, order, colours, space, cells = [], painted = [];

async function start() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  setTheme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
  events = await data.events();
  order = new Order(data, events, orderChanged);
  state.views = events.reconstructions.slice(0, 3).map(({ name }) => name);
  $("source").textContent = [events.source, events.sample, events.detector].filter((word, i, all) => word && all.indexOf(word) === i).join(" · ");
  Order.choices(events).forEach(({ key, title }) => $("order").append(make("option", { value: key }, title)));
  const drawnBy = new URLSearchParams(location.search).get("webgl") === "off" ? null : webGL();
  if (drawnBy) space = new Views3D($("views"), select, drawnBy);
  else say("No WebGL here: views are flat", 4000);
  buildViews();
  wire();
  await show(events.start);
  document.documentElement.dataset.ready = "yes";
}

function wire() {
  const on = (id, what, action) => $(id).addEventListener(what, action);
  on("previous", "click", () => actions.step(-1));
  on("next", "click", () => actions.step(1));
  on("number", "change", () => goTo(Number($("number").value)));
  on("order", "change", () => chooseOrder($("order").value));
  on("colour", "change", () => actions.colour($("colour").value));
  on("count", "change", () => setCount(Number($("count").value)));
  on("camera", "change", () => {
    if ($("camera").value) actions.look($("camera").value);
    $("camera").value = "";
  });
  for (const id of ["picture", "theme", "help"]) on(id, "click", () => actions[id]());
  on("pt", "input", () => {
    const share = Number($("pt").value) / 100;
    state.minPt = share ? Number((0.1 * 1000 ** share).toPrecision(2)) : 0;
    $("pt-value").textContent = String(state.minPt);
    redraw();
  });
  for (const kind of PANES) on(kind, "click", (event) => pickFlat($(kind), kind, state.active, event));
  new ResizeObserver(() => state.scene && drawFlat()).observe($("stage"));
  showKeys($("key-list"));
  listen(actions);
}

/** Load an event and draw it. */
async function show(index) {
  state.index = index;
  let scene;
  try {
    scene = prepared(await data.scene(index));
  } catch (error) {
    return say(error.message);
  }
  if (state.index !== index) return undefined; // somebody was faster
  const first = !state.scene;
  state.scene = scene;
  state.selected = null;
  if (first) firstScene(scene);
  controls();
  say(order.note);
  $("number").value = String(index);
  showPlace();
  $("phoenix").href = data.phoenix(index);
  $("phoenix").download = `event-${index}.phoenix.json`;
  fillViews();
  if (first) space?.look("corner");
  return undefined;
}

function firstScene(scene) {
  const used = new Set(scene.reconstructions.flatMap((one) => one.candidates.label));
  const unknown = used.has(0);
  state.offered = scene.classes.filter((name, i) => (i > 0 && (i < 6 || used.has(i))) || (i === 0 && unknown));
  state.classes = new Set(state.offered);
  if (!scene.hits.x.length) state.layers.clusters = true;
  if (space) space.reach = Math.hypot(scene.extent.radius, scene.extent.length) * 0.8;
}

const controls = () => showControls($("classes"), $("layers"), state, colours, redraw);

/** One cell per view, with the choice of its reconstruction. */
function buildViews() {
  cells.forEach(({ element }) => element.remove());
  cells = state.views.map((name, i) => {
    const choice = make("select", { ariaLabel: `Reconstruction of view ${i + 1}` },
      ...events.reconstructions.map((one) => make("option", { value: one.name, selected: one.name === name }, one.title)));
    const text = make("span");
    const element = make("div", { className: "view" }, make("div", { className: "head" }, choice, text));
    if (!space) element.prepend(flatCanvas(i));
    choice.addEventListener("change", () => {
      state.views[i] = choice.value;
      state.active = i;
      fillViews();
    });
    $("views").append(element);
    return { element, choice, text };
  });
  $("views").style.gridTemplateColumns = `repeat(${cells.length}, minmax(0, 1fr))`;
  $("count").value = String(cells.length);
}

function flatCanvas(i) {
  const canvas = make("canvas");
  canvas.setAttribute("role", "img");
  canvas.addEventListener("click", (event) => pickFlat(canvas, "xy", i, event));
  return canvas;
}

const reconstruction = (i) => state.scene.reconstructions.find((one) => one.name === state.views[i]) ?? state.scene.reconstructions[0];

function fillViews() {
  if (!state.scene) return;
  state.active = Math.min(state.active, cells.length - 1);
  cells.forEach(({ text }, i) => (text.textContent = summary(reconstruction(i))));
  space?.setContents(state.scene, cells.map(({ element }, i) => ({ element, reconstruction: reconstruction(i) })), colours);
  redraw();
}

/** Everything that depends on the state. */
function redraw() {
  const { scene } = state;
  if (!scene) return;
  painted = cells.map((_, i) => paint(scene, reconstruction(i), state, colours));
  cells.forEach(({ element }, i) => element.classList.toggle("active", i === state.active && cells.length > 1));
  space?.paint(painted, state, colours);
  drawFlat();
  const active = reconstruction(state.active);
  showSelected($("selected"), scene, state, colours);
  showList($("list"), $("listed"), scene, active, painted[state.active], state, (candidate) => select(state.active, candidate));
  showLegend($("legend"), scene, state, colours);
  const told = `Event ${state.index}: ${cells.map((_, i) => `${reconstruction(i).title}, ${summary(reconstruction(i))}`).join("; ")}`;
  space?.canvas.setAttribute("aria-label", told);
  PANES.forEach((kind) => $(kind).setAttribute("aria-label", `${kind} of ${active.title}, event ${state.index}`));
}

function drawFlat(ratio) {
  const active = reconstruction(state.active);
  for (const kind of PANES) {
    drawPane($(kind), kind, state.scene, active, painted[state.active], state, colours, ratio);
    $(kind).parentElement.querySelector("small").textContent = active.title;
  }
  if (!space) cells.forEach(({ element }, i) => drawPane(element.querySelector("canvas"), "xy", state.scene, reconstruction(i), painted[i], state, colours, ratio));
}

/** Draw all canvases so much finer than the screen; null is as usual. */
function redrawAt(ratio) {
  if (space) {
    space.ratio = ratio ?? undefined;
    space.render();
  }
  drawFlat(ratio ?? undefined);
}

function select(view, candidate) {
  state.active = view;
  state.selected = candidate === null ? null : { name: reconstruction(view).name, candidate };
  redraw();
}

function pickFlat(canvas, kind, view, event) {
  const box = canvas.getBoundingClientRect();
  const point = [event.clientX - box.left, event.clientY - box.top];
  select(view, pickPane(canvas, kind, state.scene, reconstruction(view), painted[view], state, point));
}

function setCount(count) {
  const rest = events.reconstructions.map(({ name }) => name).filter((name) => !state.views.includes(name));
  state.views = [...state.views, ...rest, ...state.views].slice(0, count);
  buildViews();
  fillViews();
  space?.look("corner");
}

function goTo(index) {
  if (order.natural.includes(index)) return show(index);
  $("number").value = String(state.index);
  return say(`No event ${index} here; there are ${order.natural.length}, from ${order.natural[0]} to ${order.natural.at(-1)}`, 4000);
}

async function chooseOrder(key) {
  $("order").value = key;
  try {
    await order.choose(key);
  } catch (error) {
    say(error.message);
  }
}

function orderChanged(jump) {
  say(order.note);
  if (jump && order.key) show(order.sequence[0]);
  else showPlace();
}

function showPlace() {
  $("place").textContent = `${order.place(state.index) + 1} of ${order.sequence.length}`;
}

function setTheme(theme) {
  state.theme = theme;
  document.documentElement.dataset.theme = theme;
  colours = palette(theme);
  if (!state.scene) return;
  controls();
  fillViews();
}

let silence;
function say(text, ms = 0) {
  clearTimeout(silence);
  $("status").textContent = text;
  if (ms) silence = setTimeout(() => ($("status").textContent = ""), ms);
}

const actions = {
  step: (steps) => show(order.step(state.index, steps)),
  worst: () => {
    const keys = [...$("order").options].map((option) => option.value).filter((key) => key.includes(" "));
    const wanted = keys.find((key) => key === `jet ${state.views[state.active]}`) ?? keys[0];
    if (wanted) chooseOrder(order.key ? "" : wanted);
  },
  goTo: () => $("number").select(),
  walk: (steps) => {
    const list = candidateOrder(reconstruction(state.active), painted[state.active]);
    const here = state.selected?.name === reconstruction(state.active).name ? list.indexOf(state.selected.candidate) : -1;
    const place = here < 0 ? (steps > 0 ? 0 : list.length - 1) : Math.min(Math.max(here + steps, 0), list.length - 1);
    if (list.length) select(state.active, list[place]);
  },
  nextView: () => {
    state.active = (state.active + 1) % cells.length;
    redraw();
  },
  clear: () => select(state.active, null),
  colour: (mode) => {
    state.colour = mode;
    $("colour").value = mode;
    redraw();
  },
  look: (from) => space?.look(from),
  layer: (name) => {
    if (!offers(state.scene, name)) return say(`This event has no ${name}`, 3000);
    state.layers[name] = !state.layers[name];
    controls();
    return redraw();
  },
  graphLayer: (steps) => {
    state.graphLayer = Math.min(Math.max(state.graphLayer + steps, 0), Math.max((state.scene.graph?.length ?? 0) - 1, 0));
    controls();
    redraw();
  },
  theme: () => setTheme(state.theme === "dark" ? "light" : "dark"),
  help: () => $("keys").showModal(),
  picture: async () => {
    const titles = cells.map(({ choice, text }, i) => ({ choice, text, title: reconstruction(i).title }));
    const legend = state.colour === "class" ? state.offered.map((name) => ({ text: name.replaceAll("_", " "), colour: colours.ofClass(name) })) : [];
    const title = `${$("source").textContent} · event ${state.scene.event.number}`;
    const blob = await savePicture({ title, stage: $("stage"), colours, cells: titles, legend, redraw: redrawAt });
    save(blob, `${events.source ?? "event"}-${state.index}.png`);
  },
};

/** Where on the screen the end of a candidate's line is, in the first view or in a pane of the active one. */
function where(kind, candidate) {
  if (kind === "space") return space.where(0, candidate);
  const [canvas, view] = kind === "flat" ? [cells[0].element.querySelector("canvas"), 0] : [$(kind), state.active];
  const box = canvas.getBoundingClientRect();
  const [x, y] = placeInPane(canvas, kind === "flat" ? "xy" : kind, state.scene, reconstruction(view), state, candidate);
  return [box.left + x, box.top + y];
}

// For measurements and tests from outside: what is shown, where, and how often it was drawn.
window.ringflow = { state, actions, frames: () => space?.frames ?? 0, space: () => space ?? null, where };

start().catch((error) => say(error.message));
