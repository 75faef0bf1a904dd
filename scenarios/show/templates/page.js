// Hands a run's timeline to Perfetto, which shows it in the browser: perfetto.dev, "Deep linking to the Perfetto UI".
// The bytes stand in this page, for no page that is a file may read the file beside it. Nothing happens before a click.
document.addEventListener("click", async event => {
  const link = event.target.closest("a[data-trace]");
  if (!link) return;
  const viewer = window.open(link.href);
  if (!viewer) return;
  event.preventDefault();
  const origin = new URL(link.href).origin;
  const packed = new Blob([Uint8Array.from(atob(link.dataset.trace), each => each.charCodeAt(0))]);
  const buffer = await new Response(packed.stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
  const asking = setInterval(() => viewer.closed ? clearInterval(asking) : viewer.postMessage("PING", origin), 100);
  window.addEventListener("message", function hand(answer) {
    if (answer.source !== viewer || answer.origin !== origin || answer.data !== "PONG") return;
    clearInterval(asking);
    window.removeEventListener("message", hand);
    viewer.postMessage({perfetto: {buffer, title: link.dataset.title}}, origin);
  });
});
