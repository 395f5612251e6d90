// What is shown, in the fragment of the address: a link opens the same again. What is as it comes is left out of it.
import { LAYERS } from "./controls.js";

const COLOURS = ["class", "energy", "subsystem", "particle", "candidate"];
export const LOOKS = ["corner", "front", "side", "top"];
const MOST_VIEWS = 4;
const NARROW = 700; // pixels; as in the style sheet
const FARTHEST = 1e5; // mm

/** How the page comes: everything that an address may say otherwise. */
export const initial = (events) => ({
  index: events.start, order: "", views: events.reconstructions.slice(0, innerWidth < NARROW ? 1 : 3).map(({ name }) => name), active: 0, colour: "class",
  minPt: 0, without: new Set(), layers: { ...LAYERS }, graphLayer: 0, selected: null, look: "corner",
});

/** The fragment of a state, where it differs from how the page comes. */
export function written(state, usual) {
  const parts = [["event", [state.index]]];
  const add = (name, values, usually = []) => String(values) !== String(usually) && parts.push([name, values]);
  const layers = (on) => Object.keys(LAYERS).filter((name) => state.layers[name] === on && usual.layers[name] !== on);
  add("order", [state.order], [usual.order]);
  add("views", state.views, usual.views);
  add("active", [state.active], [usual.active]);
  add("colour", [state.colour], [usual.colour]);
  add("pt", [state.minPt], [usual.minPt]);
  add("without", [...state.without]);
  add("on", layers(true));
  add("off", layers(false));
  add("graph", [state.graphLayer], [usual.graphLayer]);
  add("selected", state.selected ? [state.selected.name, state.selected.candidate] : []);
  add("look", [state.look].flat(), [usual.look]);
  return `#${parts.map(([name, values]) => `${name}=${values.map(encodeURIComponent).join(",")}`).join("&")}`;
}

/** The state that a fragment means. What makes no sense, or is not offered here, stays as the page comes. */
export function read(fragment, usual, { indices, orders, names }) {
  const said = new Map(fragment.slice(1).split("&").map((part) => [part.split("=")[0], part.slice(part.indexOf("=") + 1).split(",").map(decoded)]));
  const list = (name, known) => (said.get(name) ?? []).filter((value) => known.includes(value));
  const one = (name, known, otherwise) => list(name, known)[0] ?? otherwise;
  const number = (text, least, most) => (text?.trim() && Number(text) >= least && Number(text) <= most ? Number(text) : null);
  const whole = (name, most) => [number(said.get(name)?.[0], 0, most)].find(Number.isInteger);
  const views = list("views", names).slice(0, MOST_VIEWS);
  const shown = views.length ? views : usual.views;
  const layers = { ...usual.layers };
  for (const name of list("on", Object.keys(LAYERS))) layers[name] = true;
  for (const name of list("off", Object.keys(LAYERS))) layers[name] = false;
  const index = whole("event", Infinity);
  const [name, candidate] = said.get("selected") ?? [];
  const selects = names.includes(name) && Number.isInteger(number(candidate, 0, Infinity));
  return {
    index: indices.includes(index) ? index : usual.index,
    order: one("order", orders, usual.order),
    views: shown,
    active: whole("active", shown.length - 1) ?? usual.active,
    colour: one("colour", COLOURS, usual.colour),
    minPt: number(said.get("pt")?.[0], 0, 100) ?? usual.minPt,
    without: new Set(said.get("without") ?? []),
    layers,
    graphLayer: whole("graph", 1000) ?? usual.graphLayer,
    selected: selects ? { name, candidate: Number(candidate) } : null,
    look: place(said.get("look") ?? [], number) ?? one("look", LOOKS, usual.look),
  };
}

/** Where the camera is and what it looks at: six numbers, of two places. */
function place(values, number) {
  const found = values.map((text) => number(text, -FARTHEST, FARTHEST));
  const apart = Math.hypot(...[0, 1, 2].map((axis) => found[axis] - found[axis + 3])) >= 1;
  return found.length === 6 && !found.includes(null) && apart ? found : null;
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return "";
  }
}

const REST = 300; // ms without a change until the address follows
const FLICK = 1000; // ms: events gone through faster are one step back

/** Keeps the address: another event is a step that one can go back, everything else changes the step one is at. */
export class Address {
  /** `fragment()` says what the address shall be; `onBack` is called when somebody goes back, forward or edits it. */
  constructor(fragment, onBack) {
    this.fragment = fragment;
    this.lastStep = -Infinity;
    addEventListener("popstate", () => {
      clearTimeout(this.waiting);
      onBack(location.hash);
    });
  }

  /** Soon: what changes continuously shall not write a hundred times. */
  follow() {
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => this.write(false), REST);
  }

  step() {
    const now = performance.now();
    this.write(now - this.lastStep > FLICK);
    this.lastStep = now;
  }

  write(step) {
    clearTimeout(this.waiting);
    const fragment = this.fragment();
    if (fragment === location.hash) return;
    history[step ? "pushState" : "replaceState"](null, "", fragment);
  }
}
