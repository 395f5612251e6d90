// The side panel: the selected candidate, the list of candidates, what is shown, and the legend.
import { css } from "./colours.js";
import { elementName } from "./elements.js";
import { heardBy } from "./links.js";
import { scalesOf } from "./painting.js";

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
  count.textContent = `${reconstruction.title}: ${order.length} of ${candidates.label.length}, energies in GeV`;
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
  if (state.colour === "energy") lines.push(...colourScales(scene, state, colours).map(drawnScale));
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

const MOST_TICKS = 5;

/** The scales of what is shown, when colours mean energy: [{title, colour of a share, ticks: [{share, text}]}]. */
export function colourScales(scene, { layers }, colours) {
  const scales = scalesOf(scene);
  return [
    ["hit energy", scales.hits, colours.ofEnergy, layers.hits && scene.hits.x.length],
    ["cluster energy", scales.clusters, colours.ofEnergy, layers.clusters && scene.clusters.x.length],
    ["momentum of tracks and candidates", scales.momentum, colours.ofMomentum, layers.tracks || layers.candidates],
  ].filter(([, , , shown]) => shown).map(([title, scale, colour]) => {
    const [unit, factor] = scale.high < 1 ? ["MeV", 1000] : ["GeV", 1];
    return { title: `${title} [${unit}]`, colour, ticks: ticksOf(scale, factor) };
  });
}

/** Round numbers on a logarithmic scale: 1, 2 and 5 of every decade, or fewer of them where those are many. */
function ticksOf(scale, factor) {
  const first = Math.floor(Math.log10(scale.low * factor)), last = Math.ceil(Math.log10(scale.high * factor));
  const decades = Array.from({ length: last - first + 1 }, (_, i) => first + i);
  const within = (steps) => decades.flatMap((power) => steps.map((step) => Number((step * 10 ** power).toPrecision(1))))
    .filter((value) => value >= scale.low * factor * 0.999 && value <= scale.high * factor * 1.001);
  const found = [[1, 2, 5], [1, 3], [1]].map(within).find((values) => values.length <= MOST_TICKS) ?? within([1]).filter((_, i) => i % 2 === 0);
  const values = found.length > 1 ? found : [scale.low * factor, scale.high * factor];
  return values.map((value) => ({ share: scale(value / factor), text: String(Number(value.toPrecision(2))) }));
}

function drawnScale({ title, colour, ticks }) {
  const canvas = make("canvas", { width: 256, height: 1 });
  fillScale(canvas.getContext("2d"), colour, 0, 0, 256, 1);
  const marks = ticks.map(({ share, text }) => {
    const mark = make("span", {}, text);
    mark.style.left = `${100 * share}%`;
    return mark;
  });
  const whole = make("div", { className: "scale" }, make("span", {}, title), canvas, make("div", { className: "ticks" }, ...marks));
  whole.setAttribute("role", "img");
  whole.setAttribute("aria-label", `Colours of ${title}, logarithmic: ${ticks.map(({ text }) => text).join(", ")}`);
  return whole;
}

/** A bar of the colours of a scale. */
export function fillScale(context, colour, x, y, width, height) {
  for (let step = 0; step < width; step++) {
    context.fillStyle = css(colour(step / (width - 1)));
    context.fillRect(x + step, y, 1.5, height);
  }
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
