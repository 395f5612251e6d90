// The side panel: the selected candidate, the list of candidates, what is shown, and the legend.
import { css } from "./colours.js";
import { elementName } from "./elements.js";
import { heardBy } from "./links.js";

const words = (name) => name.replaceAll("_", " ");
const number = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits).replace("-", "−"));
const percent = (ratio) => `${ratio >= 0 ? "+" : "−"}${Math.abs(100 * ratio).toFixed(1)} %`;

/** A new element with properties and children. */
export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function dot(colour) {
  const element = make("span", { className: "dot" });
  element.style.background = css(colour);
  return element;
}

/** Numbers of the selected candidate and of the true particle it is matched with. */
export function showSelected(holder, scene, state, colours) {
  holder.replaceChildren();
  const home = state.selected && scene.reconstructions.find((one) => one.name === state.selected.name);
  if (!home) {
    holder.append(make("h2", {}, "Nothing selected"), make("p", {}, "Click a line, a hit or a row; j and k go through the candidates."));
    return;
  }
  const i = state.selected.candidate, c = home.candidates;
  const title = make("h2", {}, dot(colours.ofClass(scene.classes[c.label[i]])), `${words(scene.classes[c.label[i]])} of ${home.title}`);
  const hits = home.hits.reduce((sum, owner) => sum + (owner === i), 0);
  const rows = [
    ["energy", `${number(c.energy[i])} GeV`],
    ["pT, η, φ", `${number(c.pt[i])} GeV, ${number(c.eta[i])}, ${number(c.phi[i])}`],
    ["charge", c.charge[i] > 0 ? `+${c.charge[i]}` : number(c.charge[i], 0)],
    ["made of", madeOf(home, i, hits)],
    ...matchRows(scene, home, i),
  ];
  holder.append(title, make("dl", {}, ...rows.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])));
  const heard = heardBy(scene, home.name, i);
  if (heard.length) holder.append(listensTo(scene, heard, home.elements, i));
}

/** The elements that a candidate listens to, the loudest first, and whether they speak for what it became. */
function listensTo(scene, heard, { tracks, clusters }, candidate) {
  const own = new Set([...tracks[candidate].map((i) => `track ${i}`), ...clusters[candidate].map((i) => `cluster ${i}`)]);
  return make("div", { className: "heard", ariaLabel: "Listens to" }, make("span", { className: "quiet whole" }, "listens to"), ...heard.flatMap(({ element, weight, share }) => {
    const bar = make("span", { className: weight < 0 ? "bar against" : "bar" });
    bar.style.width = `${100 * share}%`;
    const name = elementName(scene, element);
    const words = [own.has(name) ? `${name} (own)` : name, bar, `${(100 * Math.abs(weight)).toFixed(0)} %`, weight < 0 ? "against" : "for"];
    return words.map((word, column) => (column === 1 ? word : make("span", { className: ["", "", "share", "quiet"][column] }, word)));
  }));
}

function madeOf(home, i, hits) {
  const parts = [["track", home.elements.tracks[i]], ["cluster", home.elements.clusters[i]]]
    .filter(([, list]) => list.length)
    .map(([name, list]) => (list.length === 1 ? `${name} ${list[0]}` : `${list.length} ${name}s`));
  return [...parts, ...(hits ? [`${hits} hits`] : [])].join(", ") || "not told";
}

function matchRows(scene, home, i) {
  const { truth } = scene;
  if (!truth) return [];
  if (home === truth) {
    const found = scene.reconstructions.filter((one) => one !== truth && one.candidates.match.includes(i));
    const particles = scene.particles.pdg?.filter((_, p) => scene.particles.target[p] === i) ?? [];
    return [["PDG", particles.slice(0, 6).join(", ") + (particles.length > 6 ? ", …" : "")], ["found by", found.map((one) => one.title).join(", ") || "nobody"]];
  }
  const target = home.candidates.match[i];
  if (target < 0) return [["truth", "matches no true particle"]];
  const t = truth.candidates;
  return [
    ["truth", `${words(scene.classes[t.label[target]])}, ${number(t.energy[target])} GeV`],
    ["energy error", percent(home.candidates.energy[i] / t.energy[target] - 1)],
  ];
}

/** The candidates of a reconstruction that the cuts leave, by falling energy. */
export function candidateOrder(reconstruction, painted) {
  const { energy } = reconstruction.candidates;
  return energy.map((_, i) => i).filter((i) => painted.shown[i]).sort((a, b) => energy[b] - energy[a]);
}

export function showList(holder, count, scene, reconstruction, painted, state, onSelect) {
  const order = candidateOrder(reconstruction, painted);
  const { candidates } = reconstruction;
  count.textContent = `${reconstruction.title}: ${order.length} of ${candidates.label.length}`;
  const rows = order.map((i) => {
    const matched = !scene.truth || candidates.match[i] >= 0;
    const row = make("div", { id: `candidate-${i}`, onclick: () => onSelect(i) },
      dot(painted.candidates[i]), make("span", {}, words(scene.classes[candidates.label[i]])),
      make("span", {}, `${number(candidates.energy[i])}`), make("span", { title: matched ? "matched with the truth" : "matches no true particle" }, matched ? "" : "✕"));
    row.setAttribute("role", "option");
    row.setAttribute("aria-label", `${words(scene.classes[candidates.label[i]])}, ${number(candidates.energy[i])} GeV${matched ? "" : ", not true"}`);
    row.setAttribute("aria-selected", String(painted.chosen.has(i)));
    return row;
  });
  holder.replaceChildren(...rows);
  const chosen = order.find((i) => painted.chosen.has(i));
  if (chosen === undefined) return holder.removeAttribute("aria-activedescendant");
  holder.setAttribute("aria-activedescendant", `candidate-${chosen}`);
  const row = document.getElementById(`candidate-${chosen}`);
  if (row.offsetTop < holder.scrollTop + holder.offsetTop || row.offsetTop > holder.scrollTop + holder.offsetTop + holder.clientHeight - 20)
    holder.scrollTop = row.offsetTop - holder.offsetTop - holder.clientHeight / 2;
  return undefined;
}

/** Check boxes that change a set or a table of flags. */
export function showChecks(holder, entries, onChange) {
  holder.replaceChildren(...entries.map(({ name, title, on, colour }) => {
    const box = make("input", { type: "checkbox", checked: on, name });
    box.addEventListener("change", () => onChange(name, box.checked));
    return make("label", {}, box, ...(colour ? [dot(colour)] : []), title ?? words(name));
  }));
}

/** What the colours mean. */
export function showLegend(holder, scene, state, colours) {
  const entry = (colour, text) => make("span", { className: "entry" }, dot(colour), text);
  const lines = [];
  if (state.colour === "energy") lines.push(bar(colours), range(scene.hits.x.length ? scene.scales.hits : scene.scales.clusters));
  if (state.colour === "subsystem") lines.push(make("div", {}, ...scene.subsystems.map((name) => entry(colours.ofSubsystem(name), words(name)))));
  if (state.colour === "particle") lines.push(make("div", {}, "One colour per true particle, the same in all views."));
  if (state.colour === "candidate")
    lines.push(make("div", {}, "A candidate has the colour of the true particle it matches."), make("div", {}, entry(colours.wrong, "matches none"), entry(colours.none, "of no candidate")));
  if (state.colour === "class") lines.push(make("div", {}, entry(colours.none, "of no candidate"), "dashed: neutral"));
  if (state.layers.links && state.selected && heardBy(scene, state.selected.name, state.selected.candidate).length)
    lines.push(make("div", {}, "rings: it listens to; dashed: against"));
  if (state.layers.graph && scene.graph?.length) lines.push(make("div", {}, entry(colours.graph, "learned graph; weak edges are faint")));
  holder.replaceChildren(...lines);
}

function bar(colours) {
  const canvas = make("canvas", { width: 256, height: 1 });
  const context = canvas.getContext("2d");
  for (let x = 0; x < 256; x++) {
    context.fillStyle = css(colours.ofShare(x / 255));
    context.fillRect(x, 0, 1, 1);
  }
  return canvas;
}

function range(scale) {
  const text = (energy) => (energy >= 1 ? `${energy.toPrecision(2)} GeV` : `${(1000 * energy).toPrecision(2)} MeV`);
  return make("div", {}, make("span", {}, text(scale.low)), make("span", {}, text(scale.high)));
}

/** One line about a reconstruction of an event. */
export function summary(reconstruction) {
  const { errors, candidates } = reconstruction;
  const parts = [`${candidates.label.length} candidates`];
  if (reconstruction.name !== "target" && errors.true_energy)
    parts.push(`ΔE ${number(errors.energy_sum - errors.true_energy, 1)} GeV`, `worst jet ${number(errors.jet, 1)} GeV`);
  else parts.push(`ΣE ${number(errors.energy_sum, 1)} GeV`);
  return parts.join(" · ");
}
