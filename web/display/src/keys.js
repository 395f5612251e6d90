// Keyboard: one table, which is also the help.

/** [keys, what they do, name of the action, argument]. */
export const KEYS = [
  [["n", "ArrowRight"], "next event", "step", 1],
  [["p", "ArrowLeft"], "previous event", "step", -1],
  [["w"], "go to the worst event of the model, or of the active view", "worst"],
  [["o"], "events as they come", "natural"],
  [["g"], "go to an event", "goTo"],
  [["j", "ArrowDown"], "next candidate", "walk", 1],
  [["k", "ArrowUp"], "previous candidate", "walk", -1],
  [["v"], "next view", "nextView"],
  [["Escape"], "select nothing", "clear"],
  [["1"], "colour by class", "colour", "class"],
  [["2"], "colour by energy", "colour", "energy"],
  [["3"], "colour by subsystem", "colour", "subsystem"],
  [["4"], "colour by true particle", "colour", "particle"],
  [["5"], "colour by candidate", "colour", "candidate"],
  [["0"], "look from the corner", "look", "corner"],
  [["z"], "look along the beam", "look", "front"],
  [["x"], "look from the side", "look", "side"],
  [["y"], "look from above", "look", "top"],
  [["h"], "hits on or off", "layer", "hits"],
  [["c"], "clusters on or off", "layer", "clusters"],
  [["r"], "tracks on or off", "layer", "tracks"],
  [["d"], "detector on or off", "layer", "detector"],
  [["l"], "lines to what a candidate listens to", "layer", "links"],
  [["m"], "learned graph on or off", "layer", "graph"],
  [["["], "graph of the layer before", "graphLayer", -1],
  [["]"], "graph of the next layer", "graphLayer", 1],
  [["e"], "save a picture", "picture"],
  [["t"], "light or dark", "theme"],
  [["?"], "these keys", "help"],
];
const SHOWN = { ArrowRight: "→", ArrowLeft: "←", ArrowDown: "↓", ArrowUp: "↑", Escape: "Esc" };

/** Call actions for keys, unless somebody is typing or choosing. */
export function listen(actions) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.target.matches?.("input[type=number], input[type=range], select") && event.key !== "Escape") return;
    const found = KEYS.find(([keys]) => keys.includes(event.key));
    if (!found) return;
    event.preventDefault();
    actions[found[2]](found[3]);
  });
}

export function showKeys(holder) {
  holder.replaceChildren(...KEYS.flatMap(([keys, text]) => {
    const names = document.createElement("dt");
    keys.forEach((key) => names.append(Object.assign(document.createElement("kbd"), { textContent: SHOWN[key] ?? key }), " "));
    return [names, Object.assign(document.createElement("dd"), { textContent: text })];
  }));
}
