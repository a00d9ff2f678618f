# What `cmake --install` puts where, and the .deb that CPack makes of it (cpack -G DEB in the build folder).
include(GNUInstallDirs)

# Everything that running needs: the binary and the modules that it loads at run time.
add_custom_target(moeplan_all DEPENDS moeplan)
foreach(module moeplan_cuda moeplan_nccl)
  if(TARGET ${module})
    add_dependencies(moeplan_all ${module})
    install(TARGETS ${module} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/moeplan)
  endif()
endforeach()

# The manual page and the shell completion are read off the binary's own parser.
set(manual ${CMAKE_BINARY_DIR}/moeplan.1)
set(completion ${CMAKE_BINARY_DIR}/moeplan.bash)
add_custom_command(OUTPUT ${manual} ${completion} DEPENDS moeplan
  COMMAND moeplan _manual man > ${manual}
  COMMAND moeplan _manual bash > ${completion} VERBATIM)
add_custom_target(moeplan_manual ALL DEPENDS ${manual} ${completion})
add_dependencies(moeplan_all moeplan_manual)

install(TARGETS moeplan RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY specs schemas DESTINATION ${CMAKE_INSTALL_DATADIR}/moeplan)
install(FILES validation/software_states.json DESTINATION ${CMAKE_INSTALL_DATADIR}/moeplan/validation)
install(FILES ${manual} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${completion} DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME moeplan)
install(FILES README.md LICENSE CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(CPACK_PACKAGE_NAME moeplan)
set(CPACK_PACKAGE_VENDOR "the moeplan authors")
set(CPACK_PACKAGE_CONTACT "the moeplan authors <moeplan@example.org>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_GENERATOR DEB)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "openmpi-bin")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_STRIP_FILES ON)
include(CPack)
