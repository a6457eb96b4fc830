import { onEachBackend } from "../../harness/server/on-each-backend.js";
import { commandScenarios } from "./command-scenarios.js";

onEachBackend("commands through the e2b SDK", ({ sandbox }) => commandScenarios(sandbox), {
  onJails: true,
});
