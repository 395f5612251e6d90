// Lines between elements on a flat picture: what candidates listen to, and the learned graph.
import { css } from "./colours.js";
import { edgesOf, linksOf } from "./links.js";

const AGAINST = [3, 3]; // dashes of what speaks against a candidate

/**
 * Draw both, as far as they are switched on. `flat` knows the picture: `element(i)` and `candidate(i)` give pixels or null,
 * with the azimuth as third number where r has a sign; `turn` is the height of a full turn if the picture goes on at its other
 * edge, else 0.
 */
export function drawFlatLines(context, scene, reconstruction, painted, state, colours, flat) {
  if (state.layers.graph) drawGraph(context, edgesOf(scene, painted, state), painted.chosen.size > 0, colours, flat);
  if (!state.layers.links) return;
  for (const { candidate, element, weight, share } of linksOf(scene, reconstruction, painted)) {
    const from = flat.candidate(candidate), to = flat.element(element);
    if (!to) continue;
    context.strokeStyle = css(colours.text, 0.5 + 0.5 * share);
    context.lineWidth = 1 + 2 * share;
    context.setLineDash(weight < 0 ? AGAINST : []);
    context.beginPath();
    segment(context, from, to, flat.turn);
    context.stroke();
    context.setLineDash([]);
    context.lineWidth = 1.4;
    context.beginPath();
    context.arc(to[0], to[1], 3 + 4 * share, 0, 2 * Math.PI);
    context.stroke();
  }
}

function drawGraph(context, groups, any, colours, { element, turn }) {
  context.lineWidth = any ? 1.2 : 0.8;
  for (const { opacity, edges } of groups) {
    context.strokeStyle = css(colours.graph, opacity);
    context.beginPath();
    for (const [a, b] of edges) {
      const from = element(a), to = element(b);
      if (from && to) segment(context, from, to, turn);
    }
    context.stroke();
  }
}

/**
 * The short way from a point to another; across the edge of the picture it is drawn at both sides. Where r has a sign, neighbours
 * at both sides of y = 0 are far apart in the picture only, and not joined.
 */
function segment(context, from, to, turn) {
  if (from.length > 2 && from[2] < 0 !== to[2] < 0 && Math.cos(from[2] - to[2]) > 0) return;
  const across = turn && Math.abs(to[1] - from[1]) > turn / 2 ? Math.sign(from[1] - to[1]) * turn : 0;
  for (const shift of across ? [0, -across] : [0]) {
    context.moveTo(from[0], from[1] + shift);
    context.lineTo(to[0], to[1] + across + shift);
  }
}
