// The feed: server-sent events read with fetch, since an EventSource can send no API key.
// It comes back by itself when the server does, and rests while nobody looks at the page.

const SILENT_MS = 60000; // the server says something at least every few seconds
const WAIT_MS = [300, 600, 1200, 2500, 5000]; // before the next try

// Calls on.event(name, data) with each event, on.state(name, words) when the connection changes:
// "live", "lost", "key" (a key is wanted; words say why). Returns {key(text)}, which gives a key.
export function follow(url, on) {
  let key = "";
  let tries = 0;
  let stop = new AbortController();
  let wake = () => {};

  const sleep = (ms) => new Promise((done) => {
    const timer = setTimeout(done, ms);
    wake = () => { clearTimeout(timer); done(); };
  });

  async function read(body, alive) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      alive();
      rest += value;
      let end;
      while ((end = rest.indexOf("\n\n")) >= 0) {
        take(rest.slice(0, end));
        rest = rest.slice(end + 2);
      }
    }
  }

  function take(block) {
    let name = "message";
    let data = "";
    for (const line of block.split("\n")) {
      if (line.startsWith("event: ")) name = line.slice(7);
      else if (line.startsWith("data: ")) data += line.slice(6);
    }
    if (data) {
      tries = 0;
      on.event(name, JSON.parse(data));
    }
  }

  async function connect() {
    stop = new AbortController();
    let timer = 0;
    const alive = () => { clearTimeout(timer); timer = setTimeout(() => stop.abort(), SILENT_MS); };
    alive();
    try {
      const headers = { accept: "text/event-stream" };
      if (key) headers.authorization = `Bearer ${key}`;
      const answer = await fetch(url, { headers, cache: "no-store", signal: stop.signal });
      if (answer.status === 401 || answer.status === 403) {
        const said = await answer.json().catch(() => ({}));
        on.state("key", key ? said.error?.message ?? "this key is refused" : "");
        return "key";
      }
      if (!answer.ok) return "lost";
      on.state("live", "");
      await read(answer.body, alive);
    } catch (error) {
      if (error instanceof SyntaxError) console.warn("the feed was cut off", error.message);
    } finally {
      clearTimeout(timer);
    }
    return "lost";
  }

  async function run() {
    for (;;) {
      if (document.hidden) {
        await sleep(3600000);
        continue;
      }
      const left = await connect();
      if (left === "key") {
        await sleep(3600000);
      } else if (!document.hidden) {
        on.state("lost", "");
        await sleep(WAIT_MS[Math.min(tries++, WAIT_MS.length - 1)] * (0.75 + Math.random() / 2));
      }
    }
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) stop.abort();
    else { tries = 0; wake(); }
  });
  addEventListener("online", () => wake());
  run();
  return { key(text) { key = text.trim(); tries = 0; stop.abort(); wake(); } };
}
