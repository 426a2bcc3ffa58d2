namespace dslide {}
