// All views in one WebGL canvas, each in its own part of it, seen by one camera. Drawn only when something changed.
import * as THREE from "three";
import { OrbitControls } from "three/addons/controls/OrbitControls.js";
import { Content } from "./content3d.js";
import { nearestLine } from "./picking.js";

const FIELD_OF_VIEW = 32;
const DIRECTIONS = { corner: [0.72, 0.36, 0.6], front: [0, 0, 1], side: [1, 0, 0], top: [0, 1, 0.001] };
const MOST_PIXELS_PER_PIXEL = 2;
const SLOW = 50; // ms per frame, above which less is drawn while the camera moves
const REST = 180; // ms without movement until all is drawn again
const COARSE_RATIO = 0.6;

/** Who draws in space: the name of it, or null if nobody does; asked on a canvas of its own, because asking three writes errors. */
export function webGL() {
  try {
    const context = document.createElement("canvas").getContext("webgl2");
    const extension = context?.getExtension("WEBGL_debug_renderer_info");
    const name = context && String(context.getParameter(extension?.UNMASKED_RENDERER_WEBGL ?? context.RENDERER));
    context?.getExtension("WEBGL_lose_context")?.loseContext();
    return name;
  } catch {
    return null;
  }
}

const BY_PROCESSOR = /swiftshader|llvmpipe|software/i;

export class Views3D {
  /**
   * `onPick(view, candidate or null)` is called when somebody clicks, `onTurn(where the camera is)` when somebody moved it;
   * `drawnBy` is the name that `webGL` gave.
   */
  constructor(holder, onPick, onTurn, drawnBy) {
    const slow = BY_PROCESSOR.test(drawnBy);
    this.pace = slow ? Infinity : 0; // ms per frame while the camera moves
    this.holder = holder;
    this.onPick = onPick;
    this.contents = [];
    this.canvas = document.createElement("canvas");
    Object.assign(this.canvas, { id: "space", tabIndex: 0 });
    this.canvas.setAttribute("role", "img");
    holder.prepend(this.canvas);
    this.renderer = new THREE.WebGLRenderer({ canvas: this.canvas, antialias: !slow, powerPreference: "high-performance" });
    this.renderer.setScissorTest(true);
    this.camera = new THREE.PerspectiveCamera(FIELD_OF_VIEW, 1, 50, 60000);
    this.controls = new OrbitControls(this.camera, this.canvas);
    this.controls.addEventListener("change", () => this.moved());
    this.controls.addEventListener("end", () => onTurn([...this.camera.position, ...this.controls.target].map(Math.round)));
    this.frames = 0;
    this.reach = 3800;
    this.look("corner");
    this.setCoarse(false);
    this.listen();
  }

  listen() {
    let start = null;
    this.canvas.addEventListener("pointerdown", (event) => (start = [event.clientX, event.clientY]));
    this.canvas.addEventListener("click", (event) => {
      if (start && Math.hypot(event.clientX - start[0], event.clientY - start[1]) < 5) this.pick(event.clientX, event.clientY);
    });
    this.canvas.addEventListener("webglcontextlost", (event) => event.preventDefault());
    this.canvas.addEventListener("webglcontextrestored", () => this.invalidate());
    new ResizeObserver(() => this.invalidate()).observe(this.holder);
  }

  /** New event or other reconstructions: one content per cell. */
  setContents(scene, cells, colours) {
    this.contents.forEach(({ content }) => content.dispose());
    this.contents = cells.map(({ element, reconstruction }) => ({ element, content: new Content(scene, reconstruction, colours) }));
    const back = new THREE.Color(...colours.back.map((value) => value / 255)).convertSRGBToLinear();
    this.renderer.setClearColor(back, 1);
  }

  paint(painted, state, colours) {
    this.contents.forEach(({ content }, i) => content.paint(painted[i], state, colours));
    this.invalidate();
  }

  invalidate() {
    this.waiting ??= requestAnimationFrame(() => {
      this.waiting = null;
      this.render();
    });
  }

  /** The camera moves: on a slow machine less is drawn until it rests. */
  moved() {
    const now = performance.now();
    const since = now - (this.lastMove ?? -Infinity);
    this.lastMove = now;
    if (since < 4 * REST) this.pace = 0.5 * (this.pace + since);
    if (this.pace > SLOW) this.setCoarse(true);
    clearTimeout(this.resting);
    this.resting = setTimeout(() => this.setCoarse(false), REST);
    this.invalidate();
  }

  setCoarse(coarse) {
    if (this.coarse === coarse) return;
    this.coarse = coarse;
    this.contents.forEach(({ content }) => content.setCoarse(coarse));
    this.invalidate();
  }

  render() {
    const usual = Math.min(window.devicePixelRatio || 1, MOST_PIXELS_PER_PIXEL);
    const ratio = this.coarse ? usual * COARSE_RATIO : this.ratio ?? usual;
    const { width, height, left, top } = this.holder.getBoundingClientRect();
    if (!width || !height) return;
    const size = this.renderer.getSize(new THREE.Vector2());
    if (size.x !== width || size.y !== height || this.renderer.getPixelRatio() !== ratio) {
      this.renderer.setPixelRatio(ratio);
      this.renderer.setSize(width, height, false);
    }
    for (const { element, content } of this.contents) {
      const cell = element.getBoundingClientRect();
      const place = [cell.left - left, height - (cell.bottom - top), cell.width, cell.height];
      this.renderer.setViewport(...place);
      this.renderer.setScissor(...place);
      this.camera.aspect = cell.width / Math.max(cell.height, 1);
      this.camera.updateProjectionMatrix();
      const pixelsPerUnit = cell.height / (2 * Math.tan((FIELD_OF_VIEW * Math.PI) / 360));
      content.setScale(pixelsPerUnit, ratio);
      this.renderer.render(content.root, this.camera);
    }
    this.frames += 1;
  }

  /** From a direction by its name; or from a place to a place, given as six numbers. */
  look(from) {
    if (Array.isArray(from)) {
      this.camera.position.set(...from.slice(0, 3));
      this.controls.target.set(...from.slice(3));
      this.controls.update();
      return this.invalidate();
    }
    const direction = new THREE.Vector3(...DIRECTIONS[from]).normalize();
    const cell = this.contents[0]?.element.getBoundingClientRect();
    const narrow = cell ? Math.min(cell.width / Math.max(cell.height, 1), 1) : 1;
    const distance = this.reach / Math.sin((FIELD_OF_VIEW * Math.PI) / 360) / Math.max(narrow, 0.4);
    this.controls.target.set(0, 0, 0);
    this.camera.position.copy(direction.multiplyScalar(distance * 0.92));
    this.controls.update();
    return this.invalidate();
  }

  pick(clientX, clientY) {
    const found = this.contents.findIndex(({ element }) => contains(element.getBoundingClientRect(), clientX, clientY));
    if (found < 0) return;
    const { content } = this.contents[found];
    this.onPick(found, nearestLine(content.scene, content.reconstruction, this.projection(found), [clientX, clientY]));
  }

  /** Where on the screen the end of a candidate's line is. */
  where(view, candidate) {
    return this.projection(view)(...this.contents[view].content.reconstruction.candidates.line[candidate].slice(-3));
  }

  /** From places in the detector to places on the screen, for one view; null behind the camera. */
  projection(view) {
    const cell = this.contents[view].element.getBoundingClientRect();
    this.camera.aspect = cell.width / cell.height;
    this.camera.updateProjectionMatrix();
    const e = new THREE.Matrix4().multiplyMatrices(this.camera.projectionMatrix, this.camera.matrixWorldInverse).elements;
    return (x, y, z) => {
      const w = e[3] * x + e[7] * y + e[11] * z + e[15];
      const u = (e[0] * x + e[4] * y + e[8] * z + e[12]) / w;
      const v = (e[1] * x + e[5] * y + e[9] * z + e[13]) / w;
      return w > 0 ? [cell.left + ((u + 1) * cell.width) / 2, cell.top + ((1 - v) * cell.height) / 2] : null;
    };
  }
}

const contains = (cell, x, y) => x >= cell.left && x <= cell.right && y >= cell.top && y <= cell.bottom;
