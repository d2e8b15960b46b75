/** The source: sockets, time, and the streams of a program. */

import { readFile } from "node:fs/promises";
import * as net from "node:net";
import { performance } from "node:perf_hooks";
import * as tls from "node:tls";
import type { Address } from "./addresses.js";
import { parseAddresses, Reconnecting, show } from "./addresses.js";
import { isU64, streamIdOf } from "./codec.js";
import { Lost, RequestError } from "./errors.js";
import type { Messages } from "./feed.js";
import { Feed } from "./feed.js";
import { Restarted, Session, Stream, type Terms } from "./session.js";

const STREAMS_MAX = 1000;

/** The window that we announce: how much may be sent and not be durable yet. We can, because we handle partial sends. */
const WINDOW_BYTES = 8 * 2 ** 20;

/** How many bytes may wait for the socket. */
const UNSENT_BYTES_MAX = 256 * 1024;

/** How many messages a stream may send before the next stream's turn. */
const TURN_MESSAGES = 256;

/** How long the last frames may take to leave, and the worker to close its end. */
const FAREWELL_MS = 2000;

/** The longest delay of a timer; longer ones overflow. */
const TIMER_MS_MAX = 2 ** 31 - 1;

export interface SourceOptions {
  /** The source's name. */
  source: string;
  program?: string;
  /** The worker's cookie; without one, the token in the file that PENSTOCK_TOKEN_FILE names. */
  cookie?: string | Uint8Array;
  /** Options of `tls.connect`, such as `ca`; true for the system's authorities. */
  tls?: tls.ConnectionOptions | true;
  /** Everything in the stream up to this id is complete; ids only increase. */
  onAck?: (stream: string, id: bigint) => void;
  /** Called before each pause between two connections. */
  onRetry?: (reason: Error, pauseMs: number) => void;
  /** How long a worker may take to answer. */
  timeoutSeconds?: number;
  /** How long to retry without progress; Infinity: forever. */
  retrySeconds?: number;
}

export interface StreamOptions {
  /** By default it is derived from the name. The worker knows a stream by its id. */
  id?: bigint;
}

/** Sends streams of messages to a worker, each message effectively once. See README.md. */
export class Source {
  private readonly streams = new Map<string, Stream>();
  private readonly terms: Terms;
  private readonly reconnecting: Reconnecting;
  private isRunning = false;
  private isStopped = false;
  private failure: Error | undefined;
  private wakeUp: () => void = () => undefined;

  /** The address may be several, with commas between them: "a:7100,b:7100". */
  constructor(
    addresses: string,
    private readonly options: SourceOptions,
  ) {
    const retryMs = (options.retrySeconds ?? 60) * 1000;
    this.terms = {
      source: options.source,
      program: `${options.program ?? "penstock-node"};window=${WINDOW_BYTES}`,
      cookie: options.cookie ?? "",
      timeoutMs: (options.timeoutSeconds ?? 20) * 1000,
      retryMs,
    };
    this.reconnecting = new Reconnecting(parseAddresses(addresses), retryMs);
  }

  /** Add a stream with the messages that `messages` returns. May be called at any time. */
  stream(name: string, messages: Messages, options: StreamOptions = {}): Stream {
    const added = new Stream(name, options.id ?? streamIdOf(name), messages);
    if (!isU64(added.id)) throw new RequestError(`stream ${name}: ${added.id} is not an unsigned 64-bit number`);
    if (this.streams.size >= STREAMS_MAX) throw new RequestError(`a source has at most ${STREAMS_MAX} streams`);
    for (const other of this.streams.values()) {
      if (other.name === name || other.id === added.id) throw new RequestError(`stream ${name}: the name or the id is taken`);
    }
    this.streams.set(name, added);
    this.wakeUp();
    return added;
  }

  /** Report to the worker why this source cannot continue, and let `run` throw the error. */
  fail(reason: Error | string): void {
    this.failure ??= typeof reason === "string" ? new RequestError(reason) : reason;
    this.wakeUp();
  }

  /** Make `run` close the connection and return soon. The next run sends again what is not stored. */
  stop(): void {
    this.isStopped = true;
    this.wakeUp();
  }

  /** Send every stream until its iterable ends and its last message is acknowledged. */
  async run(): Promise<void> {
    if (this.isRunning) throw new RequestError("this source is running already");
    if (this.streams.size === 0) throw new RequestError("this source has no streams");
    this.isRunning = true;
    try {
      while (!this.isOver()) await this.attempt();
    } finally {
      this.isRunning = this.isStopped = false;
      this.failure = undefined;
      this.wakeUp = () => undefined;
    }
  }

  /** Whether there is nothing more to do. Throws after `fail`. */
  private isOver(): boolean {
    if (this.failure !== undefined) throw this.failure;
    return this.isStopped || [...this.streams.values()].every((stream) => stream.isDone);
  }

  /** One connection, the connections that workers redirect us to, and a pause if the last one was lost. */
  private async attempt(): Promise<void> {
    try {
      let connection: Connection | undefined = await this.connect();
      while (connection !== undefined) connection = await this.use(connection);
    } catch (error) {
      if (!(error instanceof Lost)) throw error;
      if (error instanceof Restarted) this.reconnecting.restarted(error.address);
      if (this.isOver()) return;
      const pause = this.reconnecting.pause(error, error instanceof Restarted, performance.now());
      this.options.onRetry?.(error, pause);
      await this.sleep(pause);
    }
  }

  private async connect(): Promise<Connection> {
    try {
      const terms = { ...this.terms, cookie: await this.cookie() };
      return await Connection.open(this.reconnecting.address, terms, this.options, () => this.wakeUp());
    } catch (error) {
      if (error instanceof Lost) this.reconnecting.notConnected();
      throw error;
    }
  }

  /** The token may be replaced while a program runs: it is read for each connection. */
  private async cookie(): Promise<string | Uint8Array> {
    const file = process.env["PENSTOCK_TOKEN_FILE"];
    if (this.options.cookie !== undefined || !file) return this.options.cookie ?? "";
    try {
      return (await readFile(file, "utf8")).trim();
    } catch (error) {
      throw new RequestError(`the token file ${file} cannot be read: ${(error as Error).message}`);
    }
  }

  /** Returns the next connection if the worker has sent us elsewhere. */
  private async use(connection: Connection): Promise<Connection | undefined> {
    const { session } = connection;
    try {
      return (await this.serve(connection)) ? await this.follow(connection) : undefined;
    } finally {
      connection.close();
      const now = performance.now();
      if (session.wasUseful(now)) this.reconnecting.progressed();
      if (session.target !== undefined) this.reconnecting.remember(session.target);
      else if (!session.hasMoved) this.reconnecting.notConnected(); // perhaps cut off from its store
    }
  }

  /** The old connection stays open until the worker at the new address has answered. */
  private async follow(old: Connection): Promise<Connection> {
    const target = old.session.target!;
    old.session.target = undefined; // from here on `reconnecting` knows it
    this.reconnecting.moved(target);
    const next = await this.connect();
    try {
      while (!this.isOver() && !next.session.isOpen && next.session.target === undefined) {
        next.check();
        await this.wait(next.session.poll(performance.now()), () => next.flush());
      }
    } catch (error) {
      next.close();
      if (!next.session.isOpen) this.reconnecting.notConnected();
      throw error;
    }
    old.session.migrated();
    await old.farewell();
    return next;
  }

  /** Returns whether the worker has sent us elsewhere. */
  private async serve(connection: Connection): Promise<boolean> {
    const { session } = connection;
    const feeds = new Map<Stream, Feed>();
    try {
      while (!this.isOver()) {
        connection.check();
        for (const stream of this.streams.values()) session.add(stream, performance.now());
        const due = session.poll(performance.now());
        if (session.target !== undefined) closeAll(feeds);
        else this.open(session, feeds);
        const isBusy = fill(connection, feeds);
        connection.flush();
        if (session.mayLeave(performance.now())) return true;
        if (this.isOver()) break;
        await this.wait(isBusy ? performance.now() : due);
      }
      await connection.farewell();
      return false;
    } catch (error) {
      if (!(error instanceof Lost) && !connection.isLost) {
        session.fail(error instanceof Error ? error.message : String(error));
        await connection.farewell();
      }
      throw error;
    } finally {
      closeAll(feeds);
    }
  }

  private open(session: Session, feeds: Map<Stream, Feed>): void {
    for (const stream of session.opened.splice(0)) {
      const feed = new Feed(stream.name, () => this.wakeUp());
      feeds.set(stream, feed);
      void feed.fill(stream.messages, stream.stored);
    }
  }

  private async sleep(milliseconds: number): Promise<void> {
    const deadline = performance.now() + milliseconds;
    while (!this.isOver() && performance.now() < deadline) await this.wait(deadline);
  }

  /** Wait for a change, at most until `until`. `before` runs once no change can be missed. */
  private async wait(until: number, before: () => void = () => undefined): Promise<void> {
    await new Promise<void>((resolve) => {
      const pause = Math.min(Math.max(until - performance.now(), 0), TIMER_MS_MAX);
      const timer = setTimeout(resolve, pause);
      this.wakeUp = () => {
        clearTimeout(timer);
        setImmediate(resolve); // after everything else in this turn of the event loop
      };
      before();
    });
  }
}

function closeAll(feeds: Map<Stream, Feed>): void {
  for (const feed of feeds.values()) feed.close();
  feeds.clear();
}

/** Give each stream a turn, the one that has waited longest first. Returns whether another round could send more now. */
function fill(connection: Connection, feeds: Map<Stream, Feed>): boolean {
  const { session } = connection;
  let isBusy = false;
  for (const [stream, feed] of [...feeds]) {
    for (let sent = 0; sent < TURN_MESSAGES && session.hasCredit && connection.hasRoom && !feed.isEmpty; sent++) {
      connection.queued += session.send(stream, feed.take()!);
    }
    if (feed.isEmpty && feed.error !== undefined) throw feed.error;
    feeds.delete(stream);
    if (feed.isEnded) session.end(stream);
    else feeds.set(stream, feed);
    isBusy ||= !feed.isEmpty;
  }
  return isBusy && session.hasCredit && connection.hasRoom;
}

/** A session on a socket. */
class Connection {
  /** Bytes that wait for `flush`. */
  queued = 0;
  private problem: Error | undefined;
  private isClosed = false;

  private constructor(
    readonly session: Session,
    private readonly socket: net.Socket,
    private readonly wake: () => void,
  ) {
    socket.setNoDelay(true);
    socket.setKeepAlive(true, 15_000);
    socket.on("data", (data: Buffer) => this.received(data));
    socket.on("drain", wake);
    socket.on("error", (error) => this.lost(new Lost(`the worker at ${show(session.address)}: ${error.message}`)));
    socket.on("close", () => this.lost(new Lost(`the worker at ${show(session.address)} closed the connection`)));
    socket.on("end", () => this.lost(new Lost(`the worker at ${show(session.address)} closed the connection`)));
  }

  /** Throws Lost when nobody listens. The handshake is the session's. */
  static async open(address: Address, terms: Terms, options: SourceOptions, wake: () => void): Promise<Connection> {
    const socket = await connected(address, options.tls, terms.timeoutMs);
    const report = (stream: Stream, id: bigint): void => options.onAck?.(stream.name, id);
    return new Connection(new Session(address, terms, performance.now(), report), socket, wake);
  }

  get isLost(): boolean {
    return this.problem !== undefined;
  }

  get hasRoom(): boolean {
    return this.queued + this.socket.writableLength < UNSENT_BYTES_MAX;
  }

  /** Throws the reason if the connection can no longer be used. */
  check(): void {
    if (this.problem !== undefined) throw this.problem;
  }

  flush(): void {
    const out = this.session.take();
    this.queued = 0;
    if (out.length > 0 && !this.isClosed && this.socket.writable) this.socket.write(Buffer.concat(out));
  }

  /** Let everything that was sent arrive: flush it, then read until the worker closes. */
  async farewell(): Promise<void> {
    this.flush();
    this.isClosed = true;
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, FAREWELL_MS);
      this.socket.once("close", () => {
        clearTimeout(timer);
        resolve();
      });
      if (this.socket.destroyed) this.socket.emit("close");
      this.socket.end();
    });
  }

  close(): void {
    this.isClosed = true;
    this.socket.destroy();
  }

  private received(data: Buffer): void {
    if (this.isClosed || this.problem !== undefined) return;
    try {
      this.session.receive(data, performance.now());
    } catch (error) {
      this.problem = error as Error;
    }
    this.wake();
  }

  private lost(error: Lost): void {
    this.problem ??= error;
    this.wake();
  }
}

async function connected(address: Address, options: SourceOptions["tls"], timeoutMs: number): Promise<net.Socket> {
  const where = { host: address.host, port: address.port };
  const name = net.isIP(address.host) === 0 ? { servername: address.host } : {};
  const socket =
    options === undefined ? net.connect(where) : tls.connect({ ...name, ...(options === true ? {} : options), ...where });
  try {
    await new Promise<void>((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`no answer for ${timeoutMs / 1000} s`)), timeoutMs);
      socket.once(options === undefined ? "connect" : "secureConnect", () => {
        clearTimeout(timer);
        resolve();
      });
      socket.once("error", (error) => {
        clearTimeout(timer);
        reject(error);
      });
    });
  } catch (error) {
    socket.on("error", () => undefined);
    socket.destroy();
    throw unreachable(address, error as NodeJS.ErrnoException);
  }
  socket.removeAllListeners("error");
  return socket;
}

/** Trying again does not make a certificate trusted; after other errors it may help. */
function unreachable(address: Address, error: NodeJS.ErrnoException): Error {
  const text = `the worker at ${show(address)} cannot be reached: ${error.message}`;
  const isCertificate = /CERT|UNABLE_TO_|SELF_SIGNED/.test(error.code ?? "");
  return isCertificate ? new RequestError(text) : new Lost(text);
}
