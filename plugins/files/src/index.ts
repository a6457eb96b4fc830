export { plugin as default } from "./plugin.js";
export { multipartFiles, type MultipartFile, type MultipartOptions } from "./http/request-body.js";
export { requestBody } from "./http/request-body.js";
export { DirectoryWatches, type DirectoryWatch, type WatchRequest } from "./watch/watchers.js";
