import { onEachBackend } from "../../harness/server/on-each-backend.js";
import { fileScenarios } from "./file-scenarios.js";

onEachBackend("files through the e2b SDK", ({ sandbox }) => fileScenarios(sandbox), {
  onJails: true,
});
