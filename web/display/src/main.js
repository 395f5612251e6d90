// The page: state, what happens when something is used, and drawing all of it anew.
import { Address, initial, read, written } from "./address.js";
import { palette } from "./colours.js";
import { offers, showControls } from "./controls.js";
import { openData, prepared } from "./data.js";
import { listen, showKeys } from "./keys.js";
import { Order } from "./order.js";
import { paint } from "./painting.js";
import { candidateOrder, colourScales, make, showLegend, showList, showSelected, summary } from "./panel.js";
import { drawPane, pickPane, placeInPane } from "./panes.js";
import { save, savePicture } from "./picture.js";
import { Views3D, webGL } from "./views3d.js";

const $ = (id) => document.getElementById(id);
const PANES = ["etaphi", "xy", "rz"];
const SOON = 150; // ms: what comes sooner needs no sign that it is waited for

const state = { scene: null, theme: "light" }; // and what an address says, see `initial`
const data = openData();
let events, order, colours, space, usual, address, cells = [], painted = [];

async function start() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  setTheme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
  events = await data.events();
  order = new Order(data, events, orderChanged);
  usual = initial(events);
  $("source").textContent = [events.source, events.sample, events.detector].filter((word, i, all) => word && all.indexOf(word) === i).join(" · ");
  Order.choices(events).forEach(({ key, title }) => $("order").append(make("option", { value: key }, title)));
  const drawnBy = new URLSearchParams(location.search).get("webgl") === "off" ? null : webGL();
  if (drawnBy) space = new Views3D($("views"), select, turned, drawnBy);
  else say("No WebGL here: views are flat", 4000);
  await restore(location.hash);
  wire();
  address = new Address(() => written(state, usual), restore);
  address.write(false);
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
    redraw();
  });
  for (const kind of PANES) on(kind, "click", (event) => pickFlat($(kind), kind, state.active, event));
  new ResizeObserver(() => state.scene && drawFlat()).observe($("stage"));
  showKeys($("key-list"));
  listen(actions);
}

/** The state that a fragment of the address means. */
function restore(fragment) {
  const orders = [...$("order").options].map((option) => option.value);
  const names = events.reconstructions.map(({ name }) => name);
  const { index, selected, ...others } = read(fragment, usual, { indices: order.natural, orders, names });
  Object.assign(state, others);
  if (order.key !== state.order) chooseOrder(state.order, false);
  buildViews();
  return show(index, selected);
}

let asked = null, underWay = null;

/** Load an event and draw it. One is under way at a time: of those that are asked for meanwhile only the last counts. */
function show(index, selected = null) {
  asked = { index, selected };
  state.index = index;
  $("number").value = String(index);
  showPlace();
  if (busy()) sayBusy();
  return (underWay ??= load());
}

async function load() {
  const sign = setTimeout(sayBusy, SOON);
  let now, scene, failure;
  do {
    now = asked;
    failure = null;
    try {
      scene = prepared(await data.scene(now.index));
    } catch (error) {
      failure = error;
    }
  } while (now !== asked);
  clearTimeout(sign);
  underWay = null;
  $("stage").ariaBusy = "false";
  $("loading").hidden = true;
  if (failure) say(failure.message);
  else draw(scene, now.selected);
}

const busy = () => $("stage").ariaBusy === "true";

function sayBusy() {
  $("stage").ariaBusy = "true";
  $("loading").hidden = false;
  say(`Computing event ${state.index} …`);
}

function draw(scene, selected) {
  const first = !state.scene, another = first || state.scene.event.index !== scene.event.index;
  state.scene = scene;
  const home = scene.reconstructions.find(({ name }) => name === selected?.name);
  state.selected = selected?.candidate < home?.candidates.label.length ? selected : null;
  state.without = new Set([...state.without].filter((name) => scene.classes.includes(name)));
  const used = new Set(scene.reconstructions.flatMap((one) => one.candidates.label));
  state.offered = scene.classes.filter((_, i) => used.has(i) || (i > 0 && i < 6));
  if (first && !scene.hits.x.length && !usual.layers.clusters) state.layers.clusters = usual.layers.clusters = true;
  if (first && space) space.reach = Math.hypot(scene.extent.radius, scene.extent.length) * 0.8;
  controls();
  say(order.note);
  const phoenix = data.phoenix(state.index);
  $("phoenix").hidden = !phoenix;
  $("phoenix").href = phoenix ?? "#";
  $("phoenix").download = `event-${state.index}.phoenix.json`;
  fillViews();
  if (first || String(state.look) !== String(looked)) look(state.look);
  if (another) address?.step();
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
  $("views").style.setProperty("--count", cells.length);
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
  $("colour").value = state.colour;
  $("pt-value").textContent = String(state.minPt);
  $("pt").value = String(state.minPt ? Math.round((100 * Math.log(state.minPt / 0.1)) / Math.log(1000)) : 0);
  showSelected($("selected"), scene, state, colours);
  showList($("list"), $("listed"), scene, active, painted[state.active], state, (candidate) => select(state.active, candidate));
  showLegend($("legend"), scene, state, colours);
  const told = `Event ${state.index}: ${cells.map((_, i) => `${reconstruction(i).title}, ${summary(reconstruction(i))}`).join("; ")}`;
  space?.canvas.setAttribute("aria-label", told);
  PANES.forEach((kind) => $(kind).setAttribute("aria-label", `${kind} of ${active.title}, event ${state.index}`));
  address?.follow();
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
  look(state.look); // views are wider or narrower now
}

let looked;
function look(from) {
  state.look = looked = from;
  space?.look(from);
  address?.follow();
}

function turned(place) {
  state.look = looked = place;
  address?.follow();
}

function goTo(index) {
  if (order.natural.includes(index)) return show(index);
  $("number").value = String(state.index);
  return say(`No event ${index} here; there are ${order.natural.length}, from ${order.natural[0]} to ${order.natural.at(-1)}`, 4000);
}

async function chooseOrder(key, jump = true) {
  state.order = $("order").value = key;
  address?.follow();
  try {
    await order.choose(key, jump);
  } catch (error) {
    say(error.message);
  }
}

let brought = null; // the worst event when only some were known

/** Go to the worst event as soon as some are known, and when all are, unless somebody went on or looks at something. */
function orderChanged(jump, whole) {
  if (!busy()) say(order.note);
  const better = whole && state.index === brought && !state.selected && brought !== order.sequence[0];
  if (jump || better) show(order.sequence[0]);
  brought = jump && !whole ? order.sequence[0] : whole ? null : brought;
  showPlace();
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
    const keys = Order.worst(events).map(({ key }) => key);
    const wanted = [state.views[state.active], "model"].map((name) => `jet ${name}`).find((key) => keys.includes(key)) ?? keys[0];
    if (!wanted) return say("No truth here, so no event is the worst", 4000);
    return order.key === wanted && order.sequence !== order.natural ? show(order.sequence[0]) : chooseOrder(wanted);
  },
  natural: () => chooseOrder(""),
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
    redraw();
  },
  look,
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
    const classes = () => state.offered.map((name) => ({ text: name.replaceAll("_", " "), colour: colours.ofClass(name) }));
    const scales = () => colourScales(state.scene, state, colours).map(({ title, ...scale }) => ({ text: title, ...scale }));
    const legend = state.colour === "class" ? classes() : state.colour === "energy" ? scales() : [];
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
