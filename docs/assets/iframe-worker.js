/* A browser starts no worker for a page that was opened as a file. There, a hidden frame takes its
   place, so that the search works without a server, too. The theme uses the name IFrameWorker. */
(() => {
  if (location.protocol !== "file:") return;
  class IFrameWorker extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.importScripts = (...urls) => urls.reduce(
        (before, it) => before.then(() => this.load(it)), Promise.resolve());
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", {data});
        this.dispatchEvent(event);
        this.onmessage?.(event);
      };
      this.ready = this.load(url);
      this.ready.catch((error) => this.onerror?.(error));
    }

    load(url) {
      return new Promise((resolve, reject) => {
        const script = this.frame.contentDocument.createElement("script");
        script.src = new URL(url, document.baseURI);
        script.onload = resolve;
        script.onerror = () => reject(new Error(`cannot load ${url}`));
        this.frame.contentDocument.body.append(script);
      });
    }

    postMessage(data) {
      this.ready.then(() =>
        this.frame.contentWindow.dispatchEvent(new MessageEvent("message", {data})));
    }

    terminate() { this.frame.remove(); }
  }
  window.IFrameWorker = window.Worker = IFrameWorker;
})();
