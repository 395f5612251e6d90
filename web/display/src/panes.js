// Flat pictures of an event on a 2D canvas: x-y, r-z and eta-phi. They need no WebGL.
import { css } from "./colours.js";
import { elementDirection, elementPlace, lastPoint } from "./elements.js";
import { drawFlatLines } from "./flatlines.js";
import { nearestLine } from "./picking.js";

const ETA = 3.2;
const MARGIN = { etaphi: [44, 30, 12, 32], xy: [10, 20, 10, 10], rz: [10, 20, 10, 10] }; // left, top, right, bottom
const SIGNED_RADIUS = (x, y) => (y < 0 ? -1 : 1) * Math.hypot(x, y);
const PLANES = { xy: (x, y) => [x, y], rz: (x, y, z) => [z, SIGNED_RADIUS(x, y)] };

/** A projection of space onto a canvas of a size: `project(x, y, z)` gives pixels. */
function projection(kind, scene, state, width, height) {
  const [left, top, right, bottom] = MARGIN[kind];
  const inner = [width - left - right, height - top - bottom];
  const [halfWidth, halfHeight] = extent(kind, scene, state);
  const scale = Math.min(inner[0] / (2 * halfWidth), inner[1] / (2 * halfHeight));
  const centre = [left + inner[0] / 2, top + inner[1] / 2];
  const plane = PLANES[kind];
  return {
    scale,
    centre,
    project: (x, y, z) => {
      const [u, v] = plane(x, y, z);
      return [centre[0] + u * scale, centre[1] - v * scale];
    },
  };
}

/** Half the width and height in mm of what is shown. */
function extent(kind, scene, state) {
  const { radius, length } = state.layers.yoke ? scene.extent.whole : scene.extent;
  return kind === "xy" ? [radius, radius] : [length, radius];
}

/** Draw one reconstruction; returns what `pickPane` needs. */
export function drawPane(canvas, kind, scene, reconstruction, painted, state, colours, ratio = window.devicePixelRatio || 1) {
  const { clientWidth: width, clientHeight: height } = canvas;
  if (!width || !height) return;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.fillStyle = css(colours.back);
  context.fillRect(0, 0, width, height);
  const draw = kind === "etaphi" ? drawEtaPhi : drawPlane;
  draw(context, kind, scene, reconstruction, painted, state, colours, width, height);
}

function drawPlane(context, kind, scene, reconstruction, painted, state, colours, width, height) {
  const { scale, project } = projection(kind, scene, state, width, height);
  const origin = project(0, 0, 0);
  for (const part of scene.detector.parts) {
    const outer = part.system === "yoke" || part.system === "coil";
    if (outer ? state.layers.yoke : state.layers.detector) drawPart(context, kind, part, scale, origin, colours);
  }
  if (state.layers.hits) drawHits(context, scene.hits, painted, project);
  if (state.layers.clusters) drawClusters(context, scene.clusters, painted, project);
  if (state.layers.tracks)
    scene.tracks.lines.forEach((line, i) => {
      const lit = painted.litTracks.has(i) || painted.heardTracks.has(i);
      stroke(context, line, project, css(painted.tracks[i], lit ? 1 : painted.chosen.size ? 0.15 : 0.4), lit ? 1.8 : 0.7, kind);
    });
  if (state.layers.candidates) drawCandidates(context, kind, reconstruction, painted, project);
  const at = (point) => point && [...project(...point), ...(kind === "rz" ? [Math.atan2(point[1], point[0])] : [])];
  drawFlatLines(context, scene, reconstruction, painted, state, colours, {
    element: (element) => at(elementPlace(scene, element)),
    candidate: (i) => at(lastPoint(reconstruction.candidates.line[i])),
    turn: 0,
  });
}

function drawPart(context, kind, part, scale, [ox, oy], colours) {
  const calorimeter = part.system !== "tracker";
  context.strokeStyle = css(colours.outline, calorimeter ? 0.55 : 0.25);
  context.fillStyle = css(colours.outline, calorimeter ? 0.09 : 0);
  context.lineWidth = 0.8;
  context.beginPath();
  if (kind === "xy") {
    if (part.both_ends) return; // disks and endcaps would cover the barrel
    context.arc(ox, oy, part.r_max * scale, 0, 2 * Math.PI);
    if (part.r_min !== part.r_max) {
      context.moveTo(ox + part.r_min * scale, oy);
      context.arc(ox, oy, part.r_min * scale, 0, 2 * Math.PI, true);
    }
  } else {
    for (const side of part.both_ends ? [1, -1] : [1])
      for (const half of [1, -1]) {
        const z = [part.z_min * side, part.z_max * side].sort((a, b) => a - b), r = [part.r_min * half, part.r_max * half].sort((a, b) => a - b);
        context.rect(ox + z[0] * scale, oy - r[1] * scale, (z[1] - z[0]) * scale, (r[1] - r[0]) * scale);
      }
  }
  context.fill("evenodd");
  context.stroke();
}

function drawHits(context, hits, painted, project) {
  const lit = [];
  painted.hits.forEach((colour, i) => {
    if (!colour) return;
    if (painted.chosen.size && painted.litHits(i)) return void lit.push(i);
    dot(context, project(hits.x[i], hits.y[i], hits.z[i]), 1.6, colour);
  });
  lit.forEach((i) => dot(context, project(hits.x[i], hits.y[i], hits.z[i]), 2.6, painted.hits[i]));
}

function dot(context, [x, y], size, colour) {
  context.fillStyle = css(colour);
  context.fillRect(x - size / 2, y - size / 2, size, size);
}

function drawClusters(context, clusters, painted, project) {
  painted.clusters.forEach((colour, i) => {
    if (colour) circle(context, project(clusters.x[i], clusters.y[i], clusters.z[i]), 2 + 1.6 * Math.log1p(clusters.energy[i]), css(colour), null);
  });
}

function drawCandidates(context, kind, { candidates }, painted, project) {
  const order = candidates.line.map((_, i) => i).sort((a, b) => painted.chosen.has(a) - painted.chosen.has(b));
  for (const i of order) {
    const lit = painted.chosen.has(i);
    if (!painted.shown[i] && !lit) continue;
    context.setLineDash(candidates.charge[i] === 0 ? [4, 3] : []);
    const alpha = painted.chosen.size && !lit ? 0.18 : 0.95;
    stroke(context, candidates.line[i], project, css(painted.candidates[i], alpha), lit ? 3.2 : 1.2, kind);
  }
  context.setLineDash([]);
}

function stroke(context, line, project, style, width, kind) {
  context.strokeStyle = style;
  context.lineWidth = width;
  context.beginPath();
  let side = 0, radius = 0;
  for (let i = 0; i + 2 < line.length; i += 3) {
    const place = project(line[i], line[i + 1], line[i + 2]);
    const now = line[i + 1] < 0 ? -1 : 1;
    // In r-z a line that crosses y = 0 far from the beam goes on at the other side: it is not drawn across.
    if (i === 0 || (kind === "rz" && side !== now && radius > 40)) context.moveTo(...place);
    else context.lineTo(...place);
    side = now;
    radius = Math.hypot(line[i], line[i + 1]);
  }
  context.stroke();
}

function etaPhiPlace(width, height) {
  const [left, top, right, bottom] = MARGIN.etaphi;
  return (eta, phi) => [
    left + ((Math.min(Math.max(eta, -ETA), ETA) + ETA) / (2 * ETA)) * (width - left - right),
    top + ((Math.PI - phi) / (2 * Math.PI)) * (height - top - bottom),
  ];
}

function drawEtaPhi(context, kind, scene, reconstruction, painted, state, colours, width, height) {
  const place = etaPhiPlace(width, height);
  drawAxes(context, place, colours);
  const { clusters } = scene, { candidates, jets } = reconstruction;
  const [x0, y0] = place(-ETA, Math.PI), [x1, y1] = place(ETA, -Math.PI);
  context.save();
  context.beginPath();
  context.rect(x0, y0, x1 - x0, y1 - y0);
  context.clip();
  if (state.layers.clusters || !scene.hits.x.length)
    clusters.eta.forEach((eta, i) => circle(context, place(eta, clusters.phi[i]), radius(clusters.energy[i]), css(colours.none, 0.9), null));
  if (state.layers.jets && jets)
    jets.eta.forEach((eta, i) => {
      for (const turn of [-2 * Math.PI, 0, 2 * Math.PI]) ellipse(context, place(eta, jets.phi[i] + turn), place, css(colours.quiet, 0.7));
    });
  const order = candidates.eta.map((_, i) => i).sort((a, b) => candidates.energy[b] - candidates.energy[a]);
  for (const i of order) {
    const lit = painted.chosen.has(i);
    if (!painted.shown[i] && !lit) continue;
    const alpha = painted.chosen.size && !lit ? 0.15 : 0.8;
    circle(context, place(candidates.eta[i], candidates.phi[i]), radius(candidates.energy[i]), lit ? css(colours.text) : null, css(painted.candidates[i], alpha), 2);
  }
  if (scene.truth && scene.truth !== reconstruction)
    scene.truth.candidates.eta.forEach((eta, i) =>
      circle(context, place(eta, scene.truth.candidates.phi[i]), radius(scene.truth.candidates.energy[i]), css(colours.text, painted.chosen.size ? 0.2 : 0.75), null, 0.9));
  const at = (direction) => direction && place(...direction);
  drawFlatLines(context, scene, reconstruction, painted, state, colours, {
    element: (element) => at(elementDirection(scene, element)),
    candidate: (i) => place(candidates.eta[i], candidates.phi[i]),
    turn: y1 - y0,
  });
  context.restore();
}

function drawAxes(context, place, colours) {
  const [x0, y0] = place(-ETA, Math.PI), [x1, y1] = place(ETA, -Math.PI);
  context.strokeStyle = css(colours.outline, 0.6);
  context.lineWidth = 1;
  context.strokeRect(x0, y0, x1 - x0, y1 - y0);
  context.fillStyle = css(colours.quiet);
  context.font = '11px system-ui, "Liberation Sans", sans-serif';
  context.textAlign = "center";
  for (const eta of [-3, -2, -1, 0, 1, 2, 3]) {
    const [x] = place(eta, 0);
    line(context, [x, y0], [x, y1], css(colours.outline, 0.18));
    context.fillText(String(eta).replace("-", "−"), x, y1 + 13);
  }
  context.textAlign = "right";
  const names = { "-2": "−π", "-1": "−π/2", 0: "0", 1: "π/2", 2: "π" };
  for (const [half, name] of Object.entries(names)) {
    const [, y] = place(0, (Number(half) * Math.PI) / 2);
    line(context, [x0, y], [x1, y], css(colours.outline, 0.18));
    context.fillText(name, x0 - 5, y + 4);
  }
  context.textAlign = "center";
  context.fillText("η", (x0 + x1) / 2, y1 + 26);
  context.save();
  context.translate(x0 - 34, (y0 + y1) / 2);
  context.rotate(-Math.PI / 2);
  context.fillText("φ [rad]", 0, 0);
  context.restore();
}

function line(context, from, to, style) {
  context.strokeStyle = style;
  context.beginPath();
  context.moveTo(...from);
  context.lineTo(...to);
  context.stroke();
}

const radius = (energy) => 2 + 1.5 * Math.sqrt(Math.max(energy ?? 0, 0));

function circle(context, [x, y], size, edge, fill, width = 1) {
  context.beginPath();
  context.arc(x, y, size, 0, 2 * Math.PI);
  if (fill) {
    context.fillStyle = fill;
    context.fill();
  }
  if (edge) {
    context.strokeStyle = edge;
    context.lineWidth = width;
    context.stroke();
  }
}

/** A jet of R = 0.4. */
function ellipse(context, [x, y], place, style) {
  const [cx, cy] = place(0, 0), [rx] = place(0.4, 0), [, ry] = place(0, 0.4);
  context.strokeStyle = style;
  context.lineWidth = 1.2;
  context.setLineDash([5, 3]);
  context.beginPath();
  context.ellipse(x, y, rx - cx, cy - ry, 0, 0, 2 * Math.PI);
  context.stroke();
  context.setLineDash([]);
}

/** The candidate at a point of a pane, or null. */
export function pickPane(canvas, kind, scene, reconstruction, painted, state, point) {
  const { clientWidth: width, clientHeight: height } = canvas;
  if (kind !== "etaphi") return nearestLine(scene, reconstruction, projection(kind, scene, state, width, height).project, point);
  const place = etaPhiPlace(width, height), { candidates } = reconstruction;
  let best = null, least = 0;
  candidates.eta.forEach((eta, i) => {
    const [x, y] = place(eta, candidates.phi[i]);
    const inside = Math.hypot(point[0] - x, point[1] - y) - radius(candidates.energy[i]) - 4;
    if (painted.shown[i] && inside < least) [best, least] = [i, inside];
  });
  return best;
}

/** Where a pane shows a candidate: the end of its line, or its direction. */
export function placeInPane(canvas, kind, scene, { candidates }, state, candidate) {
  const { clientWidth: width, clientHeight: height } = canvas;
  if (kind === "etaphi") return etaPhiPlace(width, height)(candidates.eta[candidate], candidates.phi[candidate]);
  return projection(kind, scene, state, width, height).project(...lastPoint(candidates.line[candidate]));
}
