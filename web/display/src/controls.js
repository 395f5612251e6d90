// What is shown: classes of candidates, layers of the picture, and the layer of the network whose graph is drawn.
import { make, showChecks } from "./panel.js";

/** Layers and whether they are shown at first. */
export const LAYERS = { hits: true, clusters: false, tracks: true, candidates: true, jets: true, detector: true, yoke: false, links: true, graph: true };

/** Whether an event has what a layer shows. */
export function offers(scene, layer) {
  if (layer === "hits") return scene.hits.x.length > 0;
  if (layer === "links") return scene.links.length > 0;
  return layer !== "graph" || scene.graph?.length > 0;
}

/** Fill the boxes; `changed` is called when one of them was used. */
export function showControls(classes, layers, state, colours, changed) {
  showChecks(classes, state.offered.map((name) => ({ name, on: !state.without.has(name), colour: colours.ofClass(name) })), (name, on) => {
    state.without[on ? "delete" : "add"](name);
    changed();
  });
  const offered = Object.keys(LAYERS).filter((name) => offers(state.scene, name));
  showChecks(layers, offered.map((name) => ({ name, on: state.layers[name] })), (name, on) => {
    state.layers[name] = on;
    changed();
  });
  if (offered.includes("graph")) layers.append(graphChoice(state, changed));
}

function graphChoice(state, changed) {
  const { graph } = state.scene;
  const choice = make("select", { id: "graph-layer", title: "Layer of the network ([ and ])", ariaLabel: "Layer of the network" },
    ...graph.map(({ layer }, i) => make("option", { value: String(i) }, `graph of layer ${layer + 1}`)));
  choice.value = String(Math.min(state.graphLayer, graph.length - 1));
  choice.addEventListener("change", () => {
    state.graphLayer = Number(choice.value);
    changed();
  });
  return choice;
}
