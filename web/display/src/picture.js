// The whole event as one PNG, twice as fine as the screen: views, panes, titles and the meaning of the colours.
import { css } from "./colours.js";
import { fillScale } from "./panel.js";

const FINENESS = 2;
const STRIP = 44; // height of the title above the picture
const BAR = 150; // width of a colour scale in it

/** Draw everything anew and offer it as a file. */
export async function savePicture({ title, stage, colours, cells, legend, redraw }) {
  const place = stage.getBoundingClientRect();
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(place.width * FINENESS);
  canvas.height = Math.round((place.height + STRIP) * FINENESS);
  const context = canvas.getContext("2d");
  context.scale(FINENESS, FINENESS);
  context.fillStyle = css(colours.back);
  context.fillRect(0, 0, place.width, place.height + STRIP);
  redraw(FINENESS); // a WebGL canvas can only be copied right after it was drawn
  for (const part of stage.querySelectorAll("canvas")) {
    const box = part.getBoundingClientRect();
    context.drawImage(part, box.left - place.left, box.top - place.top + STRIP, box.width, box.height);
  }
  redraw(null);
  context.fillStyle = css(colours.text);
  context.font = '600 17px system-ui, "Liberation Sans", sans-serif';
  context.fillText(title, 12, 28);
  drawLegend(context, legend, place.width - 12, 28, colours);
  for (const { element, text, strong } of labelsOf(cells, stage)) {
    const box = element.getBoundingClientRect();
    context.font = `${strong ? 600 : 400} ${strong ? 15 : 12}px system-ui, "Liberation Sans", sans-serif`;
    context.fillStyle = css(strong ? colours.text : colours.quiet);
    context.fillText(text, box.left - place.left, box.top - place.top + STRIP + 14);
  }
  drawFrames(context, stage.querySelectorAll(".view, figure"), place, colours);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

/** Titles and summaries of the views, and captions of the panes, as they stand on the page. */
function labelsOf(cells, stage) {
  const captions = [...stage.querySelectorAll("figcaption")].map((element) => ({ element, text: element.textContent, strong: true }));
  const views = cells.flatMap(({ choice, text, title }) => [
    { element: choice, text: title, strong: true },
    { element: text, text: text.textContent },
  ]);
  return [...views, ...captions];
}

function drawLegend(context, entries, right, y, colours) {
  context.font = '12px system-ui, "Liberation Sans", sans-serif';
  let x = right;
  for (const { text, colour, ticks } of [...entries].reverse()) {
    const width = context.measureText(text).width;
    if (ticks) {
      drawScale(context, text, colour, ticks, x - Math.max(width, BAR), colours);
      x -= Math.max(width, BAR) + 30;
      continue;
    }
    x -= width;
    context.fillStyle = css(colours.quiet);
    context.fillText(text, x, y);
    context.fillStyle = css(colour);
    context.beginPath();
    context.arc(x - 9, y - 4, 5, 0, 2 * Math.PI);
    context.fill();
    x -= 30;
  }
}

function drawScale(context, text, colour, ticks, x, colours) {
  fillScale(context, colour, x, 18, BAR, 8);
  context.fillStyle = css(colours.quiet);
  context.fillText(text, x, 13);
  for (const { share, text: tick } of ticks) {
    const { width } = context.measureText(tick);
    context.fillText(tick, Math.min(Math.max(x + share * BAR - width / 2, x), x + BAR - width), 39);
  }
}

function drawFrames(context, views, place, colours) {
  context.strokeStyle = css(colours.outline, 0.4);
  context.lineWidth = 1;
  for (const element of views) {
    const box = element.getBoundingClientRect();
    context.strokeRect(box.left - place.left, box.top - place.top + STRIP, box.width, box.height);
  }
}

/** Let the browser save a file. */
export function save(blob, name) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
