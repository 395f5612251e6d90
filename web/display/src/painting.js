// What colour everything of a reconstruction has, which candidates the cuts leave, and which are highlighted.
import { mix } from "./colours.js";
import { heardElements } from "./links.js";

const DIMMED = 0.86;
const RANGE = [0.02, 0.995]; // quantiles of the values that a colour scale spans

/** Everything the views and panes need to draw one reconstruction: colours and flags per object. */
export function paint(scene, reconstruction, state, colours) {
  const { candidates } = reconstruction;
  const count = candidates.label.length;
  const shown = candidates.pt.map((pt, i) => pt >= state.minPt && !state.without.has(scene.classes[candidates.label[i]]));
  const chosen = highlighted(scene, reconstruction, state);
  const owner = scene.hits.x.length ? reconstruction.hits : [];
  const cut = (candidate) => candidate >= 0 && !shown[candidate];
  const scales = scalesOf(scene);
  const rank = targetRanks(scene);
  const ofCandidate = (i) => {
    if (i < 0) return colours.none;
    if (state.colour === "energy") return colours.ofMomentum(scales.momentum(momentum(candidates, i)));
    if (state.colour === "candidate" || state.colour === "particle") return ofMatch(candidates.match[i], i);
    return colours.ofClass(scene.classes[candidates.label[i]]);
  };
  // A candidate has the colour of the true particle it is matched with, so that the same colour means the same everywhere.
  const ofMatch = (match, i) => (match >= 0 ? colours.ofRank(rank[match]) : scene.truth ? colours.wrong : colours.ofRank(i));
  const ofElement = (part, i, candidate, energies) => {
    if (state.colour === "energy") return colours.ofEnergy(energies(part.energy[i]));
    if (state.colour === "subsystem") return colours.ofSubsystem(scene.subsystems[part.subsystem[i]]);
    if (state.colour === "particle") return ofTarget(part.particle?.[i] ?? -1);
    return ofCandidate(candidate);
  };
  const ofTarget = (particle) => {
    const target = particle >= 0 ? scene.particles.target[particle] : -1;
    return target >= 0 ? colours.ofRank(rank[target]) : colours.none;
  };
  const dim = (colour, candidate, lit) => (chosen.size && !lit ? mix(colour, colours.back, DIMMED) : cut(candidate) ? null : colour);
  const clusterOwner = owners(reconstruction.elements.clusters, candidates.energy, scene.clusters.x.length);
  const litClusters = elementsOf(reconstruction.elements.clusters, chosen);
  const heard = heardElements(scene, reconstruction, chosen, state);
  const litHit = (i) => chosen.has(owner[i]) || heard.hit.has(i) || heard.cluster.has(scene.hits.cluster?.[i]);
  return {
    shown,
    chosen,
    litClusters,
    heardTracks: heard.track,
    litTracks: elementsOf(reconstruction.elements.tracks, chosen),
    tracks: scene.tracks.lines.map((_, i) =>
      state.colour === "energy" ? colours.ofMomentum(scales.momentum(momentum(scene.tracks, i))) : colours.track),
    candidates: Array.from({ length: count }, (_, i) => ofCandidate(i)),
    hits: owner.map((candidate, i) => dim(ofElement(scene.hits, i, candidate, scales.hits), candidate, litHit(i))),
    litHits: litHit,
    clusters: clusterOwner.map((candidate, i) =>
      dim(ofElement(scene.clusters, i, candidate, scales.clusters), candidate, litClusters.has(i) || heard.cluster.has(i))),
    clusterOwner,
  };
}

/** Candidates of a reconstruction that stand for the selected one: itself, or those matched with the same true particle. */
export function highlighted(scene, reconstruction, state) {
  const found = new Set();
  if (!state.selected) return found;
  const { name, candidate } = state.selected;
  const home = scene.reconstructions.find((one) => one.name === name);
  if (!home || candidate >= home.candidates.label.length) return found;
  if (reconstruction.name === name) return found.add(candidate);
  const target = home.candidates.match[candidate];
  if (target >= 0) reconstruction.candidates.match.forEach((match, i) => match === target && found.add(i));
  return found;
}

function elementsOf(lists, chosen) {
  const lit = new Set();
  for (const candidate of chosen) lists[candidate].forEach((element) => lit.add(element));
  return lit;
}

/** The most energetic candidate of every element. */
function owners(lists, energy, count) {
  const owner = new Array(count).fill(-1);
  lists.forEach((elements, candidate) => {
    for (const element of elements)
      if (owner[element] < 0 || energy[candidate] > energy[owner[element]]) owner[element] = candidate;
  });
  return owner;
}

/** Rank of every target by falling energy. */
function targetRanks(scene) {
  const truth = scene.truth?.candidates.energy ?? [];
  const order = truth.map((_, i) => i).sort((a, b) => truth[b] - truth[a]);
  const rank = [];
  order.forEach((target, place) => (rank[target] = place));
  return rank;
}

const momentum = ({ pt, eta }, i) => (pt?.[i] ?? 0) * Math.cosh(eta?.[i] ?? 0);

/**
 * Functions from GeV to a place in 0 to 1 on a logarithmic scale, with the ends of that scale: energies of hits, of clusters, and
 * momenta of tracks and candidates, each on its own, because they are hundreds of times apart.
 */
export function scalesOf(scene) {
  if (scene.scales) return scene.scales; // the same for all reconstructions of a scene
  const moving = [scene.tracks, ...scene.reconstructions.map((one) => one.candidates)];
  const momenta = moving.flatMap((part) => (part.pt ?? []).map((_, i) => momentum(part, i)));
  scene.scales = { hits: scaleOf(scene.hits.energy), clusters: scaleOf(scene.clusters.energy), momentum: scaleOf(momenta) };
  return scene.scales;
}

function scaleOf(values) {
  const sorted = Float64Array.from(values ?? []).filter((value) => value > 0).sort();
  const at = (share) => sorted[Math.min(Math.floor(share * sorted.length), sorted.length - 1)] ?? 1;
  const low = Math.log(at(RANGE[0])), high = Math.max(Math.log(at(RANGE[1])), low + 1e-6);
  const share = (value) => Math.min(Math.max((Math.log(Math.max(value, 1e-9)) - low) / (high - low), 0), 1);
  return Object.assign(share, { low: Math.exp(low), high: Math.exp(high) });
}
