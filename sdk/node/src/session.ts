/** One connection, without its socket: received bytes go in, bytes to send come out. Times are milliseconds. */

import type { Address } from "./addresses.js";
import { nextPause, show } from "./addresses.js";
import * as codec from "./codec.js";
import { Lost, ProtocolError, Refused, Unavailable } from "./errors.js";
import type { Entry, Messages } from "./feed.js";

/** How long after MIGRATE we wait for acknowledgements before we go anyway. */
const MIGRATE_MS_MAX = 15_000;

/** A connection that lasted this long counts as good, even if there was nothing to send. */
const STEADY_MS = 10_000;

/** The progress of a stream. Read-only for users; the source updates it. */
export class Stream {
  /** The last id that the worker had stored when it last opened the stream. */
  stored: bigint | undefined;
  /** The last id that an ACK reported as complete; it only increases. */
  acknowledged: bigint | undefined;
  /** Messages sent; those sent again count again. */
  sent = 0;
  /** The iterable has ended, and the worker has acknowledged its last message. */
  isDone = false;

  constructor(
    readonly name: string,
    readonly id: bigint,
    readonly messages: Messages,
  ) {}
}

type State = "new" | "notified" | "active" | "closing" | "inactive";

class Track {
  state: State = "new";
  /** The last id sent, or the one of NOTIFY_ACK. */
  last: bigint = codec.NOTHING_YET;
  notifyAt: number;
  refusals = 0;
  refusedAt: number | undefined;
  /** Whether the stream has really ended, and not just because of MIGRATE. */
  hasEnded = false;

  constructor(
    readonly stream: Stream,
    now: number,
  ) {
    this.notifyAt = now;
  }
}

/** The worker asked us to connect again, to `address` unless it is empty. */
export class Restarted extends Lost {
  constructor(
    where: Address,
    readonly address: string,
  ) {
    super(`the worker at ${show(where)} asked us to connect ${address === "" ? "again" : `to ${address}`}`);
  }
}

export interface Terms {
  source: string;
  program: string;
  cookie: string | Uint8Array;
  timeoutMs: number;
  retryMs: number;
}

/** No MESSAGE without a credit, none of a stream that is not open; acknowledgements never go backwards. */
export class Session {
  /** Streams that may be sent now, each after its `stored`; the caller empties it. */
  opened: Stream[] = [];
  /** Where the worker has sent us by MIGRATE: nothing more is sent but the ends of streams. */
  target: Address | undefined;
  private readonly decoder = new codec.Decoder();
  private readonly tracks = new Map<bigint, Track>();
  private out: Buffer[] = [];
  private credits = 0;
  private openedAt: number | undefined;
  /** Whether the worker has acknowledged anything, or reported another position than we knew. */
  hasMoved = false;
  private leaveAt = Infinity;

  constructor(
    readonly address: Address,
    private readonly terms: Terms,
    private readonly startedAt: number,
    private readonly onAck: (stream: Stream, id: bigint) => void,
  ) {
    this.out.push(codec.hello(terms.cookie, terms.program, terms.source));
  }

  /** Whether the worker has answered HELLO with OK. */
  get isOpen(): boolean {
    return this.openedAt !== undefined;
  }

  get hasCredit(): boolean {
    return this.credits > 0 && this.target === undefined;
  }

  /** Whether the next connection counts as a fresh start, not as another attempt. */
  wasUseful(now: number): boolean {
    return this.hasMoved || (this.openedAt !== undefined && now - this.openedAt >= STEADY_MS);
  }

  /** Whether it is time to connect to `target`: nothing more will be acknowledged here, or it takes too long. */
  mayLeave(now: number): boolean {
    const isEnding = [...this.tracks.values()].some((track) => track.state === "closing");
    return this.target !== undefined && this.out.length === 0 && (now >= this.leaveAt || !isEnding);
  }

  /** Request this stream, unless it is done. */
  add(stream: Stream, now: number): void {
    if (!stream.isDone && !this.tracks.has(stream.id)) this.tracks.set(stream.id, new Track(stream, now));
  }

  /** Do what is due; returns when something is due again. */
  poll(now: number): number {
    if (!this.isOpen && this.target === undefined) {
      const deadline = this.startedAt + this.terms.timeoutMs;
      if (now >= deadline) throw new Lost(`the worker at ${show(this.address)} has not answered for ${this.terms.timeoutMs / 1000} s`);
      return deadline;
    }
    if (this.target !== undefined) return this.leaveAt;
    let due = Infinity;
    for (const track of this.tracks.values()) {
      if (track.notifyAt <= now) this.notify(track);
      due = Math.min(due, track.notifyAt);
    }
    return due;
  }

  /** The bytes to send; each is returned once. */
  take(): Buffer[] {
    const out = this.out;
    this.out = [];
    return out;
  }

  receive(data: Buffer, now: number): void {
    for (const received of this.decoder.feed(data)) this.handle(received, now);
  }

  /** Send a MESSAGE; the caller has checked `hasCredit`. Returns its size in bytes. */
  send(stream: Stream, entry: Entry): number {
    const data = codec.message(stream.id, entry.id, entry.eventTime, entry.key, entry.payload);
    this.tracks.get(stream.id)!.last = entry.id;
    this.credits -= 1;
    this.out.push(data);
    stream.sent += 1;
    return data.length;
  }

  /** EOS_MESSAGE, which costs no credit: the stream is done when its last message is acknowledged. */
  end(stream: Stream): void {
    const track = this.tracks.get(stream.id)!;
    track.hasEnded = true;
    this.close(track);
    if (track.state === "inactive") stream.isDone = true;
  }

  fail(reason: string): void {
    this.out.push(codec.error(reason));
  }

  /** The worker at the new address has answered. */
  migrated(): void {
    this.out.push(codec.migrateAck());
  }

  private close(track: Track): void {
    this.out.push(codec.endOfStream(track.stream.id));
    track.state = track.last === codec.NOTHING_YET ? "inactive" : "closing"; // without a message there is no id to ack
  }

  /** NOTIFY spends a credit but does not wait for one. */
  private notify(track: Track): void {
    track.notifyAt = Infinity;
    track.state = "notified";
    this.credits -= 1;
    this.out.push(codec.notify(track.stream.id, track.stream.name, track.stream.stored ?? 0n));
  }

  private handle(received: codec.Received, now: number): void {
    const name = received.frame;
    if (name === "ERROR") throw new Refused(`the worker at ${show(this.address)} refused: ${received.text}`);
    if (!this.isOpen && name !== "OK" && name !== "MIGRATE") throw this.wrong(`${name} before OK`);
    switch (name) {
      case "OK":
        if (this.isOpen) throw this.wrong("a second OK");
        this.openedAt = now;
        this.credits += received.credits;
        return;
      case "NOTIFY_ACK":
        return this.answered(this.track(name, received.streamId), received.success, received.pointOfReference, now);
      case "ACK":
        this.credits += received.credits;
        for (const { streamId, pointOfReference } of received.acked) this.acked(this.track(name, streamId), pointOfReference);
        if (this.target !== undefined && received.credits === 0 && received.acked.length === 0) this.leaveAt = now;
        return;
      case "RESTART":
        throw new Restarted(this.address, received.address);
      case "MIGRATE":
        return this.migrate({ host: received.host, port: received.port }, now);
    }
  }

  private answered(track: Track, success: boolean, pointOfReference: bigint, now: number): void {
    if (track.state !== "notified") throw this.wrong(`NOTIFY_ACK for stream ${track.stream.name}, which was not requested`);
    if (!success) return this.postpone(track, now);
    const stored = pointOfReference === codec.NOTHING_YET ? undefined : pointOfReference;
    const before = track.stream.stored;
    this.hasMoved ||= before !== undefined && stored !== undefined && stored > before;
    track.stream.stored = stored;
    track.last = pointOfReference;
    track.state = "active";
    track.refusals = 0;
    track.refusedAt = undefined;
    if (this.target === undefined) this.opened.push(track.stream);
    else this.close(track);
  }

  /** Another session has the stream. Asking again immediately would loop at the speed of the network. */
  private postpone(track: Track, now: number): void {
    track.state = "inactive";
    track.refusedAt ??= now;
    if (now - track.refusedAt >= this.terms.retryMs) {
      throw new Unavailable(`stream ${track.stream.name} is in use by another connection, or not closed yet`);
    }
    if (this.target === undefined) track.notifyAt = now + nextPause(track.refusals++);
  }

  private acked(track: Track, pointOfReference: bigint): void {
    if (track.last === codec.NOTHING_YET || pointOfReference > track.last) {
      throw this.wrong(`ACK of message ${pointOfReference} of stream ${track.stream.name}, which was not sent`);
    }
    if (track.state === "closing" && pointOfReference === track.last) {
      track.state = "inactive";
      if (track.hasEnded) track.stream.isDone = true;
    }
    const before = track.stream.acknowledged;
    if (before !== undefined && pointOfReference <= before) return;
    track.stream.acknowledged = pointOfReference;
    this.hasMoved = true;
    this.onAck(track.stream, pointOfReference);
  }

  /** End all streams, and send nothing more. What is not acknowledged, even an end, is sent again at the new address. */
  private migrate(target: Address, now: number): void {
    this.target = target;
    this.leaveAt = now + MIGRATE_MS_MAX;
    this.opened = [];
    for (const track of this.tracks.values()) {
      track.hasEnded = track.stream.isDone;
      if (track.state === "active") this.close(track);
    }
  }

  private track(frame: string, streamId: bigint): Track {
    const track = this.tracks.get(streamId);
    if (track === undefined) throw this.wrong(`${frame} for stream ${streamId}, which is not one of ours`);
    return track;
  }

  private wrong(text: string): ProtocolError {
    return new ProtocolError(`the worker at ${show(this.address)}: ${text}`);
  }
}
