"""Programs of the kinds that the SGLang paper measures, each run by sgl, by its
peers, and by sgl with parts switched off.
"""
