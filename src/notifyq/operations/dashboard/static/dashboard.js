// Pages work without this script; it adds live values, local times, keyboard shortcuts and themes.
(() => {
  "use strict";
  const body = document.body;
  const get = (id) => document.getElementById(id);
  const announce = (text) => { get("status").textContent = text; };

  // ---- times
  const pad = (n, width = 2) => String(n).padStart(width, "0");
  function localTimes(root) {
    for (const it of root.querySelectorAll("time[datetime]")) {
      const at = new Date(it.dateTime);
      if (Number.isNaN(at.getTime())) continue;
      const text = `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ` +
        `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
      if (it.hasAttribute("data-relative")) it.title = `${text} (${it.dateTime.slice(0, 19)} UTC)`;
      else it.textContent = text;
    }
    for (const it of root.querySelectorAll("text[data-at]")) {
      const at = new Date(it.dataset.at);
      const parts = it.textContent.split(":").length;
      const clock = [at.getHours(), at.getMinutes(), at.getSeconds()].slice(0, parts);
      it.textContent = parts > 1 ? clock.map((n) => pad(n)).join(":") : `${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
    }
  }
  // In a narrow window, scroll to the current section.
  document.querySelector(".sections [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (zone) get("zone").textContent = zone;
  localTimes(document);

  // ---- theme
  const theme = get("theme");
  theme?.addEventListener("submit", (event) => {
    event.preventDefault();
    const order = ["system", "dark", "light"];
    const html = document.documentElement;
    const next = order[(order.indexOf(html.dataset.theme) + 1) % order.length];
    html.dataset.theme = next;
    const path = body.dataset.root || "/";
    document.cookie = `notifyq_theme=${next}; path=${path}; max-age=31536000; samesite=strict`;
    const text = `Theme: ${next}`;
    theme.querySelector("button").setAttribute("aria-label", text);
    theme.querySelector("button").title = text;
    announce(text);
  });

  // ---- live values
  const shown = get("live");
  const away = get("away");
  let source = null;
  let isPaused = sessionStorage.getItem("notifyq-paused") === "yes";
  let revision = null;
  let wasAway = false;
  let fetching = false;
  let wanted = false;
  let lastFetch = 0;

  function setShown(text, kind) {
    shown.textContent = text;
    shown.className = `badge live ${kind}`;
    shown.hidden = false;
  }

  function receive(event) {
    const found = JSON.parse(event.data);
    if (found.is_away) {
      const what = found.is_refused ? "The database refuses the live values" : "The database is away";
      away.textContent = `${what}: ${found.reason || "no answer"}. The values below are the last known ones.`;
      away.hidden = false;
      setShown("away", "bad");
      if (!wasAway) announce(what);
      wasAway = true;
      return;
    }
    setShown("live", "good");
    if (wasAway) { away.hidden = true; announce("The database is back"); wasAway = false; }
    for (const it of document.querySelectorAll("[data-figure]")) {
      const value = (found.figures || {})[it.dataset.figure];
      if (value === undefined || it.textContent === value) continue;
      it.textContent = value;
      it.classList.remove("changed");
      void it.offsetWidth;
      it.classList.add("changed");
    }
    if (revision !== null && revision !== found.revision) refresh();
    revision = found.revision;
  }

  // Regions are loaded again from their page, unless the user works in them.
  const isBusy = (region) => region.contains(document.activeElement) && document.activeElement.matches("input, select, textarea")
    || (getSelection() && !getSelection().isCollapsed && region.contains(getSelection().anchorNode));
  async function refresh() {
    if (!document.querySelector("[data-region]") || document.hidden) return;
    if (fetching) { wanted = true; return; }
    fetching = true;
    const wait = Math.max(0, lastFetch + 3000 - Date.now());
    await new Promise((done) => setTimeout(done, wait));
    lastFetch = Date.now();
    try {
      const answer = await fetch(location.href, { headers: { "x-notifyq-region": "1" }, redirect: "error" });
      if (!answer.ok) return;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const region of document.querySelectorAll("[data-region]")) {
        const next = page.getElementById(region.id);
        if (!next || isBusy(region) || next.innerHTML === region.dataset.seen) continue;
        region.dataset.seen = next.innerHTML;
        const open = [...region.querySelectorAll("details[open][id]")].map((it) => it.id);
        const focused = region.contains(document.activeElement) ? document.activeElement.id : "";
        const sides = [...region.querySelectorAll(".scroll")].map((it) => it.scrollLeft);
        if (region.contains(document.activeElement) && !focused) continue;
        region.replaceChildren(...next.childNodes);
        localTimes(region);
        for (const id of open) get(id)?.setAttribute("open", "");
        [...region.querySelectorAll(".scroll")].forEach((it, index) => { it.scrollLeft = sides[index] || 0; });
        if (focused) get(focused)?.focus();
      }
    } catch { /* the stream reports that the server is away */ } finally {
      fetching = false;
      if (wanted) { wanted = false; refresh(); }
    }
  }

  function start() {
    if (source || isPaused || document.hidden || !body.dataset.live) return;
    source = new EventSource(body.dataset.live);
    source.onmessage = receive;
    source.onerror = () => {
      setShown("reconnecting", "warn");
      // The browser gives up after any answer but 200, as that of a proxy while the server restarts.
      if (source?.readyState === EventSource.CLOSED) { stop(); setTimeout(start, 5000); }
    };
  }
  function stop() { source?.close(); source = null; }
  function toggle() {
    isPaused = !isPaused;
    sessionStorage.setItem("notifyq-paused", isPaused ? "yes" : "no");
    if (isPaused) { stop(); setShown("paused", "quiet"); announce("Live values paused"); } else { start(); announce("Live values resumed"); }
  }
  document.addEventListener("visibilitychange", () => (document.hidden ? stop() : start()));
  addEventListener("pagehide", stop);
  addEventListener("pageshow", start);
  if (isPaused && shown) setShown("paused", "quiet");
  start();

  // ---- forms: two clicks submit once
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.method !== "post" || form.id === "theme") return;
    if (form.dataset.sent) { event.preventDefault(); return; }
    form.dataset.sent = "yes";
  });
  addEventListener("pageshow", () => { for (const form of document.forms) delete form.dataset.sent; });

  // Long work continues automatically.
  document.querySelector("form[data-go-on]")?.requestSubmit();

  // ---- keys
  const help = get("help");
  const opener = get("help-open");
  if (help && opener) { opener.hidden = false; opener.addEventListener("click", () => help.showModal()); }
  let before = "";
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog")) return;
    const key = event.key;
    if (before === "g") {
      before = "";
      const link = [...document.querySelectorAll("[data-key]")].find((it) => it.dataset.key === key);
      if (link) { event.preventDefault(); link.click(); }
      return;
    }
    before = key === "g" ? "g" : "";
    if (before) setTimeout(() => { before = ""; }, 1500);
    if (key === "?" && help) { event.preventDefault(); help.showModal(); }
    if (key === "l" && body.dataset.live) toggle();
    if (key === "/") {
      const search = document.querySelector("[data-search]");
      if (search) { event.preventDefault(); search.focus(); search.select?.(); }
    }
  });
})();
