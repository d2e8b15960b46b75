/** Why a source has ended. */

/** The worker answered with an ERROR, and this is its text; trying again is useless. */
export class Refused extends Error {
  override name = "Refused";
}

/** What arrived violates the protocol: this is not a worker, or not of this version. */
export class ProtocolError extends Error {
  override name = "ProtocolError";
}

/** A message, an option or a stream that cannot be used. */
export class RequestError extends Error {
  override name = "RequestError";
}

/** No worker could be reached, or used, for as long as `retrySeconds`. */
export class Unavailable extends Error {
  override name = "Unavailable";
}

/** The connection is lost; the source connects again, and this is the reason if it finally gives up. */
export class Lost extends Unavailable {
  override name = "Lost";
}
