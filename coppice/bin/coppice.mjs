#!/usr/bin/env node
import "@coppice/core/cli";
