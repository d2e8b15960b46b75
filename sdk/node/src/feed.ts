/** The messages of an open stream. They wait here for credits, and the iterable waits until there is room. */

import { NOTHING_YET } from "./codec.js";
import { RequestError } from "./errors.js";

/** Ids increase from message to message of a stream, from 0 to 2^64-2. */
export interface Message {
  id: bigint | number;
  payload: Uint8Array | string;
  /** In the source's unit, milliseconds by default. */
  eventTime?: bigint | number;
  /** The partition key of the event. */
  key?: Uint8Array | string;
}

/** Returns the messages after this id, or all for undefined. It may start earlier: what is stored is skipped. */
export type Messages = (after: bigint | undefined) => AsyncIterable<Message> | Iterable<Message>;

export interface Entry {
  id: bigint;
  payload: Uint8Array;
  eventTime: bigint;
  key: Uint8Array;
}

/** How much of a stream may wait for credits before its iterable is paused, plus one message. */
const WAITING_BYTES_MAX = 64 * 1024;
const WAITING_MESSAGES_MAX = 1024;

const NO_KEY = new Uint8Array(0);

export class Feed {
  error: unknown = undefined;
  private readonly entries: Entry[] = [];
  private size = 0;
  private isComplete = false;
  private isClosed = false;
  private onRoom: (() => void) | undefined;
  private iterator: AsyncIterator<Message> | Iterator<Message> | undefined;

  constructor(
    private readonly name: string,
    private readonly wake: () => void,
  ) {}

  get isEmpty(): boolean {
    return this.entries.length === 0;
  }

  get isEnded(): boolean {
    return this.isComplete && this.isEmpty;
  }

  take(): Entry | undefined {
    const entry = this.entries.shift();
    if (entry !== undefined) {
      this.size -= sizeOf(entry);
      if (this.hasRoom) this.onRoom?.();
    }
    return entry;
  }

  /** Take no more messages, and end the iterable. */
  close(): void {
    if (this.isClosed) return;
    this.isClosed = true;
    this.onRoom?.();
    void this.endIterator();
  }

  /** Runs until the iterable ends, or the feed is closed. Never throws: `error` has what the iterable threw. */
  async fill(messages: Messages, stored: bigint | undefined): Promise<void> {
    try {
      const iterable = messages(stored);
      this.iterator = Symbol.asyncIterator in iterable ? iterable[Symbol.asyncIterator]() : iterable[Symbol.iterator]();
      await this.fillFrom(this.iterator, stored);
    } catch (error) {
      if (!this.isClosed) this.error = error ?? new Error("the iterable failed without an error");
    }
    this.wake();
  }

  private async fillFrom(iterator: AsyncIterator<Message> | Iterator<Message>, stored: bigint | undefined): Promise<void> {
    let last = -1n;
    while (!this.isClosed) {
      const next = await iterator.next();
      if (next.done) {
        this.isComplete = true;
        return;
      }
      const entry = this.checked(next.value, last);
      last = entry.id;
      if (this.isClosed || (stored !== undefined && entry.id <= stored)) continue;
      this.entries.push(entry);
      this.size += sizeOf(entry);
      if (this.entries.length === 1) this.wake();
      if (!this.hasRoom) await this.room();
    }
  }

  private checked(message: Message, last: bigint): Entry {
    const id = whole(message.id, `stream ${this.name}: id`);
    if (id <= last || id >= NOTHING_YET) {
      throw new RequestError(`stream ${this.name}: id ${id} after ${last}; ids must grow, from 0 to 2^64-2`);
    }
    const key = message.key === undefined ? NO_KEY : bytes(message.key);
    const eventTime = whole(message.eventTime ?? 0, `stream ${this.name}, message ${id}: event time`);
    return { id, payload: bytes(message.payload), eventTime, key };
  }

  private get hasRoom(): boolean {
    return this.isClosed || (this.size < WAITING_BYTES_MAX && this.entries.length < WAITING_MESSAGES_MAX);
  }

  private async room(): Promise<void> {
    while (!this.hasRoom) {
      await new Promise<void>((resolve) => {
        this.onRoom = resolve;
      });
    }
  }

  private async endIterator(): Promise<void> {
    try {
      await this.iterator?.return?.();
    } catch {
      // It is no longer used, and what it throws now concerns nobody.
    }
  }
}

/** A number beyond 2^53 has been rounded already: two ids would become the same one. */
function whole(value: bigint | number, what: string): bigint {
  if (typeof value === "number" && !Number.isSafeInteger(value)) {
    throw new RequestError(`${what} ${value} is not a safe integer; give it as a bigint`);
  }
  return BigInt(value);
}

function bytes(data: Uint8Array | string): Uint8Array {
  return typeof data === "string" ? Buffer.from(data, "utf8") : data;
}

function sizeOf(entry: Entry): number {
  return entry.payload.length + entry.key.length + 31;
}
