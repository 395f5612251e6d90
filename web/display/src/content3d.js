// What one view shows in space: a scene graph of one reconstruction of an event.
import * as THREE from "three";
import { LineSegments2 } from "three/addons/lines/LineSegments2.js";
import { LineSegmentsGeometry } from "three/addons/lines/LineSegmentsGeometry.js";
import { LineMaterial } from "three/addons/lines/LineMaterial.js";
import { mix } from "./colours.js";
import { Dots } from "./dots.js";
import { elementPlace, lastPoint } from "./elements.js";
import { edgesOf, linksOf } from "./links.js";
import { outlineGroups } from "./outline3d.js";

const CELL = [26, 26, 52, 52, 90, 90]; // size in mm by subsystem, before the energy counts

export class Content {
  constructor(scene, reconstruction, colours) {
    this.scene = scene;
    this.reconstruction = reconstruction;
    this.root = new THREE.Scene();
    this.outline = outlineGroups(scene.detector, colours);
    Object.values(this.outline).forEach((group) => this.root.add(group));
    const { hits, clusters } = scene;
    this.hits = new Dots(hits, hits.x.map((_, i) => (CELL[hits.subsystem[i]] ?? 30) * (0.7 + sized(hits.energy[i], 0.1, 0.6))));
    this.clusters = new Dots(clusters, clusters.x.map((_, i) => 60 + 160 * sized(clusters.energy[i], 5, 1.2)), true);
    this.root.add(this.hits.object, this.clusters.object);
    this.lines = new THREE.Group();
    this.thin = new THREE.Group(); // the same lines, one pixel wide: much less work
    this.thin.visible = false;
    this.root.add(this.lines, this.thin);
  }

  /** Colours, cuts, highlights and layers. */
  paint(painted, state, colours) {
    const any = painted.chosen.size > 0;
    this.hits.paint(painted.hits, any, painted.litHits);
    this.clusters.paint(painted.clusters, any, (i) => painted.litClusters.has(i));
    this.hits.object.visible = state.layers.hits;
    this.clusters.object.visible = state.layers.clusters;
    for (const [system, group] of Object.entries(this.outline)) {
      const outer = system === "yoke" || system === "coil";
      group.visible = outer ? state.layers.yoke : state.layers.detector;
    }
    this.clearLines();
    if (state.layers.tracks) this.drawTracks(painted);
    if (state.layers.candidates) this.drawCandidates(painted, colours);
    if (state.layers.graph) this.drawGraph(painted, state, colours);
    if (state.layers.links) this.drawLinks(painted, colours);
  }

  drawTracks(painted) {
    const lit = [], heard = [], others = [];
    const place = (i) => (painted.litTracks.has(i) ? lit : painted.heardTracks.has(i) ? heard : others);
    this.scene.tracks.lines.forEach((line, i) => place(i).push([line, painted.tracks[i]]));
    const faint = painted.chosen.size ? 0.25 : 0.7;
    this.add(others, { linewidth: 0.5, opacity: faint });
    this.add(heard, { linewidth: 1.8, opacity: 1 });
    this.add(lit, { linewidth: 2.5, opacity: 1 });
  }

  drawCandidates(painted, colours) {
    const { line, charge } = this.reconstruction.candidates;
    const sets = { solid: [], dashed: [], strong: [], strongDashed: [] };
    line.forEach((points, i) => {
      const lit = painted.chosen.has(i);
      if (!painted.shown[i] && !lit) return;
      const dimmed = painted.chosen.size && !lit;
      const colour = dimmed ? mix(painted.candidates[i], colours.back, 0.75) : painted.candidates[i];
      const neutral = charge[i] === 0;
      sets[lit ? (neutral ? "strongDashed" : "strong") : neutral ? "dashed" : "solid"].push([points, colour]);
    });
    this.add(sets.solid, { linewidth: 1.9 });
    this.add(sets.dashed, { linewidth: 1.5, dashed: true });
    this.add(sets.strong, { linewidth: 4.5 }, 2);
    this.add(sets.strongDashed, { linewidth: 4, dashed: true }, 2);
  }

  /** Lines from the selected candidate to the elements it depends on, each with a ring around its end. */
  drawLinks(painted, colours) {
    const links = linksOf(this.scene, this.reconstruction, painted).map((one) => ({ ...one, end: elementPlace(this.scene, one.element) }));
    const found = links.filter(({ end }) => end);
    for (const { candidate, end, weight, share } of found) {
      const start = lastPoint(this.reconstruction.candidates.line[candidate]);
      this.add([[[...start, ...end], colours.text]], { linewidth: 1.3 + 2.7 * share, opacity: 0.5 + 0.5 * share, dashed: weight < 0 }, 1);
    }
    if (!found.length) return;
    const [x, y, z] = [0, 1, 2].map((axis) => found.map(({ end }) => end[axis]));
    this.heard = new Dots({ x, y, z }, found.map(({ share }) => 80 + 120 * share), true);
    this.heard.paint(found.map(() => colours.text), false);
    this.heard.material.depthTest = false;
    this.root.add(this.heard.object);
  }

  /** The graph that the network made between elements. */
  drawGraph(painted, state, colours) {
    const any = painted.chosen.size > 0;
    for (const { opacity, edges } of edgesOf(this.scene, painted, state)) {
      const ends = edges.map(([a, b]) => [elementPlace(this.scene, a), elementPlace(this.scene, b)]).filter(([a, b]) => a && b);
      this.add(ends.map(([a, b]) => [[...a, ...b], colours.graph]), { linewidth: any ? 1.4 : 0.5, opacity });
    }
  }

  add(lines, { linewidth, opacity = 1, dashed = false }, order = 0) {
    const places = [], tints = [];
    for (const [points, colour] of lines)
      for (let i = 0; i + 5 < points.length; i += 3) {
        for (let k = 0; k < 6; k++) places.push(points[i + k]);
        const linear = new THREE.Color(colour[0] / 255, colour[1] / 255, colour[2] / 255).convertSRGBToLinear();
        tints.push(linear.r, linear.g, linear.b, linear.r, linear.g, linear.b);
      }
    if (!places.length) return;
    this.thin.add(thinLines(places, tints, opacity));
    if (linewidth < 1) return void this.lines.add(thinLines(places, tints, opacity));
    const geometry = new LineSegmentsGeometry().setPositions(places).setColors(tints);
    const material = new LineMaterial({ linewidth, vertexColors: true, dashed, dashSize: 45, gapSize: 35, transparent: opacity < 1, depthWrite: opacity === 1, opacity });
    const object = new LineSegments2(geometry, material);
    if (dashed) object.computeLineDistances();
    object.renderOrder = order;
    if (order) material.depthTest = false;
    this.lines.add(object);
  }

  clearLines() {
    for (const object of [...this.lines.children, ...this.thin.children]) {
      object.geometry.dispose();
      object.material.dispose();
    }
    this.lines.clear();
    this.thin.clear();
    this.heard?.object.removeFromParent();
    this.heard?.dispose();
    this.heard = null;
  }

  setScale(pixelsPerUnit, pixelRatio) {
    for (const dots of [this.hits, this.clusters, this.heard]) dots?.setScale(pixelsPerUnit, pixelRatio);
  }

  /** Less to draw, for as long as somebody turns the camera on a slow machine. */
  setCoarse(coarse) {
    this.lines.visible = !coarse;
    this.thin.visible = coarse;
    this.hits.setCoarse(coarse);
    this.root.traverse((object) => object.isMesh && !object.isLineSegments2 && (object.visible = !coarse));
  }

  dispose() {
    this.clearLines();
    this.hits.dispose();
    this.clusters.dispose();
    this.root.traverse((object) => {
      object.geometry?.dispose();
      object.material?.dispose?.();
    });
  }
}

function thinLines(places, tints, opacity) {
  const geometry = new THREE.BufferGeometry();
  geometry.setAttribute("position", new THREE.Float32BufferAttribute(places, 3));
  geometry.setAttribute("color", new THREE.Float32BufferAttribute(tints, 3));
  return new THREE.LineSegments(geometry, new THREE.LineBasicMaterial({ vertexColors: true, transparent: opacity < 1, depthWrite: opacity === 1, opacity }));
}

/** Grows with the logarithm of an energy, 0 far below `unit` and at most `most`. */
export function sized(energy, unit, most) {
  return Math.min(Math.log1p(Math.max(energy ?? 0, 0) / unit) * 0.35, most);
}
