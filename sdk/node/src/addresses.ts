/** Where to connect next, and when. */

import { Lost, ProtocolError, RequestError } from "./errors.js";

export const DEFAULT_PORT = 7100;

const FIRST_PAUSE_MS = 50;
const PAUSE_MS_MAX = 5000;

/** Consecutive RESTARTs or MIGRATEs without progress; more mean that workers redirect in a circle. */
const REDIRECTS_MAX = 16;

export interface Address {
  host: string;
  port: number;
}

/** `host`, `host:port`, `[v6]` or `[v6]:port`. */
export function parseAddress(text: string): Address {
  const found = /^(?:\[([^\]]+)\]|([^:[\]\s]+))(?::(\d{1,5})?)?$/.exec(text.trim());
  const port = found?.[3] === undefined ? DEFAULT_PORT : Number(found[3]);
  const host = found?.[1] ?? found?.[2];
  if (host === undefined || port > 65535) throw new RequestError(`${JSON.stringify(text)} is not an address: write host:port`);
  return { host, port };
}

/** One address or several, with commas between them. */
export function parseAddresses(text: string): Address[] {
  return text.split(",").map(parseAddress);
}

export function show({ host, port }: Address): string {
  return host.includes(":") ? `[${host}]:${port}` : `${host}:${port}`;
}

function distinct(addresses: Address[]): Address[] {
  return [...new Map(addresses.map((address) => [show(address), address])).values()];
}

/**
 * The seeds are tried in order. The address in a RESTART or a MIGRATE comes before them, and so does the address that
 * sent us there. Times are milliseconds of any monotonic clock.
 */
export class Reconnecting {
  private addresses: Address[];
  private failures = 0;
  private redirects = 0;
  private failingSince: number | undefined;

  constructor(
    private readonly seeds: Address[],
    private readonly retryMs: number,
  ) {
    this.addresses = distinct(seeds);
  }

  get address(): Address {
    return this.addresses[0]!;
  }

  /** The last connection was useful: earlier failures no longer count. */
  progressed(): void {
    this.failures = this.redirects = 0;
    this.failingSince = undefined;
  }

  /** Nobody answers at this address. */
  notConnected(): void {
    this.addresses.push(this.addresses.shift()!);
  }

  /** MIGRATE: if the new address fails, the one that we came from is next. */
  moved(target: Address): void {
    this.addresses = distinct([target, this.address, ...this.seeds]);
    this.redirects += 1;
    if (this.redirects > REDIRECTS_MAX) throw new Lost(`workers redirect the client in a circle, last to ${show(target)}`);
  }

  /** We were sent there, but lost the connection before we went: either address may be the right one. */
  remember(target: Address): void {
    this.addresses = distinct([target, ...this.addresses]);
  }

  /** RESTART, with an address or without. */
  restarted(text: string): void {
    this.redirects += 1;
    if (text === "") return;
    try {
      this.addresses = distinct([parseAddress(text), ...this.seeds]);
    } catch {
      throw new ProtocolError(`RESTART: the worker at ${show(this.address)} redirects to ${JSON.stringify(text)}, which is not an address`);
    }
  }

  /** Milliseconds to wait before the next connection. Throws the error when the time for retries is over. */
  pause(error: Error, isRestart: boolean, now: number): number {
    if (!isRestart || this.redirects > REDIRECTS_MAX) {
      this.failingSince ??= now;
      if (now - this.failingSince >= this.retryMs) throw error;
    }
    return nextPause(this.failures++);
  }
}

/** Full jitter: many sources lose a worker at once. */
export function nextPause(failures: number): number {
  return Math.random() * Math.min(FIRST_PAUSE_MS * 2 ** Math.min(failures, 30), PAUSE_MS_MAX);
}
