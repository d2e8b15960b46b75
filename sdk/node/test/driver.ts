/**
 * Runs sources for the tests in tests/sdk: a line of JSON on standard input starts one, `{"run", "address", …}`; a line
 * on standard output reports how it ended, `{"run", "error", "acked", …}`.
 */

import { createInterface } from "node:readline";
import { type Message, Source, type SourceOptions } from "../src/index.js";

interface Job {
  run: number;
  address: string;
  source: string;
  streams: string[];
  last: number;
  retrySeconds: number;
  tls?: SourceOptions["tls"];
}

async function* numbers(stream: string, after: bigint | undefined, last: number): AsyncGenerator<Message> {
  for (let id = after === undefined ? 1n : after + 1n; id <= BigInt(last); id++) yield { id, payload: `${stream} ${id}` };
}

async function perform(job: Job): Promise<void> {
  const acked: Record<string, number[]> = {};
  let error: string | null = null;
  try {
    const source = new Source(job.address, {
      source: job.source,
      retrySeconds: job.retrySeconds,
      ...(job.tls === undefined ? {} : { tls: job.tls }),
      onAck: (stream, id) => {
        (acked[stream] ??= []).push(Number(id));
        console.log(JSON.stringify({ run: job.run, stream, id: Number(id) }));
      },
    });
    for (const name of job.streams) source.stream(name, (after) => numbers(name, after, job.last));
    await source.run();
  } catch (problem) {
    error = problem instanceof Error ? `${problem.name}: ${problem.message}` : String(problem);
  }
  console.log(JSON.stringify({ run: job.run, error, acked }));
}

for await (const line of createInterface({ input: process.stdin })) void perform(JSON.parse(line) as Job);
