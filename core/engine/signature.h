#pragma once
#include "collectives/signature.h"  // moved: include that one
