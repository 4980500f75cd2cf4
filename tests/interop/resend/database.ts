// The database of the server beside this.

import { memoryAdapter } from "better-auth/adapters/memory";

export const database = memoryAdapter({ user: [], session: [], account: [], verification: [] });
