// Explanations: which elements a candidate listens to, and the graph that a network made. What is drawn, not how.
import { ownElements, resolve } from "./elements.js";

/** What a candidate listens to: [{element, weight, share of its loudest}], or nothing if nobody explained it. */
export function heardBy(scene, name, candidate) {
  const link = scene.links.find((one) => one.reconstruction === name && one.candidate === candidate);
  const largest = Math.max(...(link?.elements ?? []).map(([, weight]) => Math.abs(weight)), 1e-12);
  return (link?.elements ?? []).map(([element, weight]) => ({ element, weight, share: Math.abs(weight) / largest }));
}

/** The same for all highlighted candidates of a reconstruction: [{candidate, element, weight, share}]. */
export function linksOf(scene, reconstruction, painted) {
  return [...painted.chosen].flatMap((candidate) => heardBy(scene, reconstruction.name, candidate).map((one) => ({ candidate, ...one })));
}

/** Tracks, clusters and hits that highlighted candidates listen to: {track, cluster, hit}, each a set; empty ones if lines are off. */
export function heardElements(scene, reconstruction, chosen, state) {
  const heard = { track: new Set(), cluster: new Set(), hit: new Set() };
  if (!state.layers.links) return heard;
  for (const { element } of linksOf(scene, reconstruction, { chosen })) {
    const [kind, i] = resolve(scene, element);
    heard[kind].add(i);
  }
  return heard;
}

const GAMMA = 1.4; // above 1: strong edges stand out of the many weak ones
const STEPS = 5;

/**
 * Edges of the chosen layer of the graph in a few groups of equal opacity, the weakest first: [{opacity, edges: [[a, b]]}].
 * Two elements that listen to each other are one edge. With something selected, only edges that touch its elements.
 */
export function edgesOf(scene, painted, state) {
  const layer = scene.graph?.[Math.min(state.graphLayer, scene.graph.length - 1)];
  if (!layer?.edges.length) return [];
  const own = painted.chosen.size ? ownElements(scene, painted) : null;
  const pairs = new Map();
  for (const [a, b, weight] of layer.edges) {
    if (own && !own.has(a) && !own.has(b)) continue;
    const key = `${Math.min(a, b)} ${Math.max(a, b)}`;
    if (!(pairs.get(key)?.[2] >= weight)) pairs.set(key, [a, b, weight]);
  }
  const found = [...pairs.values()];
  const largest = Math.max(...found.map(([, , weight]) => weight), 1e-12);
  const groups = Array.from({ length: STEPS }, (_, i) => ({ opacity: (own ? 0.2 : 0.06) + 0.75 * ((i + 0.5) / STEPS), edges: [] }));
  for (const [a, b, weight] of found) {
    const strength = (Math.max(weight, 0) / largest) ** GAMMA;
    groups[Math.min(Math.floor(strength * STEPS), STEPS - 1)].edges.push([a, b]);
  }
  return groups.filter(({ edges }) => edges.length);
}
